"""The text part of a model that sees pictures, or hears sounds: its config.json as that of a model of texts alone, its
tensors likewise.

Knows JSON values and names. What config.json leaves out is what transformers takes: such files are written by it, and
hold only what differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..values import Values
from .spec import VisionSpec

LARGEST = 1 << 24
SEES, HEARS = "vision_config", "audio_config"


class TextPart(NamedTuple):
    """Layers of this server that compute it, and what is so where config.json says nothing."""

    architecture: str
    absent: dict[str, Any]


class VisionKind(NamedTuple):
    """A model's kind."""

    placeholders: dict[str, int]  # fields of config.json that name the tokens, and what they are where it does not
    flat: str = ""  # the text part's kind, where config.json has the text part's fields beside all others
    mrope: tuple[int, ...] = ()  # what `mrope_section` is where a token has three positions and nothing says it
    in_turns: bool = False  # these take pairs in turns
    tower: str = SEES  # the field of config.json that tells of the other part
    absent: dict[str, Any] = {}  # of the text part, where it is otherwise than in that kind's own files
    ties_outward: bool = False  # the text part's tie_word_embeddings: true goes before a false beside it


def _sizes(vocabulary: int, hidden: int, mlp: int, layers: int, heads: int, kv: int, length: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": length,
    }


QWEN_VL = {**_sizes(152064, 8192, 29568, 80, 64, 8, 32768), "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
TEXT_PARTS = {
    "llama": TextPart("LlamaForCausalLM", _sizes(32000, 4096, 11008, 32, 32, 32, 2048)),
    "mistral": TextPart("MistralForCausalLM", _sizes(32000, 4096, 14336, 32, 32, 8, 131072)),
    "ministral3": TextPart("Ministral3ForCausalLM", _sizes(131072, 4096, 14336, 34, 32, 8, 262144)),
    "mistral4": TextPart("Mistral4ForCausalLM", _sizes(131072, 4096, 12288, 36, 32, 32, 1048576)),
    "granite": TextPart("GraniteForCausalLM", _sizes(32000, 4096, 11008, 32, 32, 32, 2048)),
    "qwen2": TextPart("Qwen2ForCausalLM", _sizes(151936, 4096, 22016, 32, 32, 32, 32768)),
    "qwen3": TextPart("Qwen3ForCausalLM", _sizes(151936, 4096, 22016, 32, 32, 32, 32768)),
    "qwen3_moe": TextPart("Qwen3MoeForCausalLM", _sizes(151936, 2048, 6144, 24, 32, 4, 32768)),
    "gpt_oss": TextPart("GptOssForCausalLM", _sizes(201088, 2880, 2880, 36, 64, 8, 131072)),
    "qwen2_vl_text": TextPart("Qwen2ForCausalLM", QWEN_VL),
    "qwen2_5_vl_text": TextPart("Qwen2ForCausalLM", QWEN_VL),
    "qwen3_vl_text": TextPart(
        "Qwen3ForCausalLM", {**_sizes(151936, 4096, 22016, 32, 32, 32, 128000), "rope_theta": 500_000.0}
    ),
    "qwen3_vl_moe_text": TextPart(
        "Qwen3MoeForCausalLM",
        {
            **_sizes(151936, 2048, 5632, 24, 16, 16, 128000),
            **{"num_experts_per_tok": 4, "moe_intermediate_size": 1408, "norm_topk_prob": True},
            **{"rope_theta": 500_000.0, "experts_transposed": True},
        },
    ),
    "llama4_text": TextPart("Llama4ForCausalLM", _sizes(202048, 5120, 8192, 48, 40, 8, 131072)),
    "gemma3_text": TextPart("Gemma3ForCausalLM", _sizes(262208, 2304, 9216, 26, 8, 4, 131072)),
}
VOXTRAL = {"rms_norm_eps": 1e-5, "rope_theta": 100_000_000.0, "head_dim": 128}
DEEPSTACKS = ("qwen3_vl", "qwen3_vl_moe")
QWEN_PLACES = {"image_token_id": 151655, "video_token_id": 151656}
KINDS = {
    "Qwen2VLForConditionalGeneration": VisionKind(QWEN_PLACES, "qwen2_vl_text", (16, 24, 24), ties_outward=True),
    "Qwen2_5_VLForConditionalGeneration": VisionKind(QWEN_PLACES, "qwen2_5_vl_text", (16, 24, 24), ties_outward=True),
    "Qwen3VLForConditionalGeneration": VisionKind(QWEN_PLACES, "", (24, 20, 20), in_turns=True),
    "Qwen3VLMoeForConditionalGeneration": VisionKind(QWEN_PLACES, "", (24, 20, 20), in_turns=True),
    "Gemma3ForConditionalGeneration": VisionKind({"image_token_index": 262144}),
    "LlavaForConditionalGeneration": VisionKind({"image_token_index": 32000}, ties_outward=True),
    "LlavaNextForConditionalGeneration": VisionKind({"image_token_index": 32000}),
    "Mistral3ForConditionalGeneration": VisionKind({"image_token_index": 10}),
    "InternVLForConditionalGeneration": VisionKind({"image_token_id": 151667}),
    "SmolVLMForConditionalGeneration": VisionKind({"image_token_id": 128257}),
    "Idefics3ForConditionalGeneration": VisionKind({"image_token_id": 128257}),
    "Qwen2AudioForConditionalGeneration": VisionKind({"audio_token_index": 151646}, tower=HEARS),
    "VoxtralForConditionalGeneration": VisionKind(
        {"audio_token_id": 24},
        tower=HEARS,
        absent={**_sizes(131072, 3072, 8192, 30, 32, 8, 131072), **VOXTRAL},
    ),
}
TEXTS_ALONE = {  # whose text part alone is served
    "Llama4ForConditionalGeneration": VisionKind({}),
    "LlavaOnevisionForConditionalGeneration": VisionKind({}, ties_outward=True),
    "LlavaNextVideoForConditionalGeneration": VisionKind({}, ties_outward=True),
    "VipLlavaForConditionalGeneration": VisionKind({}),
    "VideoLlavaForConditionalGeneration": VisionKind({}),
    "LightOnOcrForConditionalGeneration": VisionKind({}),
}
OTHER_NAMES = {"image_token_index": "image_token_id", "audio_token_index": "audio_token_id"}
MROPE = ("mrope_section", "mrope_interleaved")
PREFIXES = (  # of the text part's tensors, and what they begin with in a model of texts alone
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    *((f"{name}.", f"{name}.") for name in ("model.embed_tokens", "model.layers", "model.norm", "lm_head")),
)


def sees(values: dict[str, Any]) -> bool:
    """Is it a model that sees pictures or hears sounds, of a kind known here?"""
    return _kind(values) is not None and _name(values) not in TEXTS_ALONE


def has_text_part(values: dict[str, Any]) -> bool:
    """Is it a model of which the layers of this server are one part?"""
    return _kind(values) is not None


def text_values(values: dict[str, Any], file: Path | str) -> dict[str, Any]:
    """config.json of the text part of such a model, and of any other what it is."""
    kind = _kind(values)
    if kind is None:
        return values
    own = values.get("text_config")
    text = dict(own) if isinstance(own, dict) else {**values, "model_type": kind.flat}
    part = TEXT_PARTS.get(str(text.get("model_type")))
    name = f"{values.get('model_type')} with {text.get('model_type')}" if part is None else part.architecture
    found = {**({} if part is None else part.absent), **kind.absent, **text, "architectures": [name]}
    for key in ("tie_word_embeddings", "eos_token_id"):
        if key in values and (key == "tie_word_embeddings" or key not in text):
            found[key] = values[key]
    if kind.ties_outward and text.get("tie_word_embeddings") is True:
        found["tie_word_embeddings"] = True
    if not (found.get("dtype") or found.get("torch_dtype")):
        found["dtype"] = values.get("dtype") or values.get("torch_dtype")
    if values.get("quantization_config") is not None:  # of the whole checkpoint
        found["quantization_config"] = values["quantization_config"]
    for key in ("rope_scaling", "rope_parameters"):
        found[key] = _plain_rope(found.get(key))
    return found


def read_vision(values: dict[str, Any], file: Path | str = "config.json") -> VisionSpec | None:
    """What there is of eyes; None: the model has none, or it or its text part is of a kind that is not known here."""
    kind = _kind(values)
    found = text_values(values, file)
    if (
        kind is None
        or not sees(values)
        or found["architectures"][0] not in {part.architecture for part in TEXT_PARTS.values()}
    ):
        return None
    whole, text = Values(file, values), Values(file, found)
    name = whole.text("model_type") or ""
    hidden, heads = text.needed("hidden_size", LARGEST), text.needed("num_attention_heads", LARGEST)
    deepstack = values["vision_config"].get("deepstack_visual_indexes", (8, 16, 24)) if name in DEEPSTACKS else ()
    tower = whole.whole("mm_tokens_per_image", 1, LARGEST) or 256
    return VisionSpec(
        kind=name,
        placeholders=_placeholders(whole, kind),
        hidden=hidden,
        hears=kind.tower == HEARS,
        deepstack=len(deepstack),
        whole_pictures=name == "gemma3",
        span=tower if name == "gemma3" else 0,
        axes=_axes(values, kind, whole, (text.whole("head_dim", 2, LARGEST) or hidden // heads) // 2),
    )


def text_name(name: str) -> str | None:
    """What a tensor of such a checkpoint is called in that of its text part alone; None: it is none of the text's."""
    for prefix, plain in PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return None


def _kind(values: dict[str, Any]) -> VisionKind | None:
    kind = (KINDS | TEXTS_ALONE).get(_name(values))
    return kind if kind is not None and isinstance(values.get(kind.tower), dict) else None


def _name(values: dict[str, Any]) -> str:
    names = values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _plain_rope(given: Any) -> Any:
    """A token of a text has the same position three times, which is one."""
    if not isinstance(given, dict):
        return given
    plain = {key: value for key, value in given.items() if key not in MROPE}
    if "mrope_section" in given:
        plain |= {key: "default" for key in ("type", "rope_type") if plain.get(key) == "mrope"}
    return plain


def _placeholders(whole: Values, kind: VisionKind) -> tuple[int, ...]:
    found = []
    for key, absent in kind.placeholders.items():
        owns = (whole.whole(name, 0, LARGEST) for name in (key, OTHER_NAMES.get(key, key)))
        found.append(next((own for own in owns if own is not None), absent))
    return tuple(dict.fromkeys(found))


def _axes(values: dict[str, Any], kind: VisionKind, whole: Values, pairs: int) -> tuple[int, ...]:
    """By `mrope_section`: so many pairs turn by time, height and width, one after the other or in turns."""
    if not kind.mrope:
        return ()
    sources = [own for own in (values.get("text_config"), values) if isinstance(own, dict)]
    ropes = [own.get(key) for own in sources for key in ("rope_parameters", "rope_scaling")]
    said = [rope["mrope_section"] for rope in ropes if isinstance(rope, dict) and "mrope_section" in rope]
    section = said[0] if said else [*kind.mrope]
    right = isinstance(section, list) and len(section) == 3 and all(isinstance(n, int) and n >= 0 for n in section)
    if not right or sum(section) != pairs:
        raise whole.wrong("mrope_section", f"three numbers whose sum is {pairs}, half of a head's,")
    if kind.in_turns:
        return _interleaved(section, pairs)
    return tuple(axis for axis, count in enumerate(section) for _ in range(count))


def _interleaved(section: list[int], pairs: int) -> tuple[int, ...]:
    """Time, height, width, time … as far as there are pairs of height and width; all that is left turns by time."""
    axes = [0] * pairs
    for axis in (1, 2):
        for place in range(axis, min(section[axis] * 3, pairs), 3):
            axes[place] = axis
    return tuple(axes)
