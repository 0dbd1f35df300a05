"""config.json of a model in Mistral's own form, whose params.json tells the same by other names.

Fields without a meaning for us are passed over; what the layers depend on and nobody knows here is refused by its name.
"""

from __future__ import annotations

from typing import Any

from ..formats.rules import one_of
from ..values import Values
from .audio import audio_of, extractor, hearing, sines
from .latent import is_latent, latent_parts
from .names import POSITIONS, TEXTS, VISION

LARGEST = 1 << 24
LENGTH = 128_000  # of texts, where nobody says it
ENDS = {"bos_token_id": 1, "eos_token_id": 2}  # of all of its vocabularies
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}
VISION_SIZES = "hidden_size intermediate_size num_hidden_layers num_attention_heads image_size patch_size".split()
FLOATS = ["lm_head", "vision_tower", "multi_modal_projector", "block_sparse_moe.gate"]  # of a model in 8 bits
MERGED = "patch_merge"  # the projector of those that see several patches as one
IMAGE_TOKEN = 10
UNKNOWN = {  # parts that change what is computed, and those who have them
    "ada_rms_norm_t_cond": "the time condition of Voxtral Realtime",
    "use_biases": "biases of linear layers",
    "attn_bias": "biases of attention",
}


def make_config(given: Values, dtype: str, beside: Values) -> dict[str, Any]:
    """config.json; `beside` is that of another form in the same folder, or empty."""
    _check_kind(given)
    text = _text(given, beside) | {"dtype": dtype}
    quantised = _quantised(given)
    vision, audio = _vision(given), audio_of(given)
    if vision is not None and audio is not None:
        raise given.wrong("multimodal", "whisper_model_args, or what the model sees by, and not both")
    whole = text if vision is None else _seeing(text, vision)
    whole = whole if audio is None else _around(text, hearing(_inner(text), audio))
    return whole if quantised is None else {**whole, "quantization_config": quantised}


def make_processors(given: Values) -> dict[str, Any]:
    """The files of what makes numbers of pictures or sounds, by name; none of a model of texts alone."""
    if (audio := audio_of(given)) is not None:
        return {"preprocessor_config.json": extractor(audio), POSITIONS: sines(audio)}
    vision = _vision(given)
    if vision is None:
        return {}
    patch = vision.needed("patch_size", LARGEST)
    longest = vision.whole("max_image_size", 1, LARGEST) or vision.needed("image_size", LARGEST)
    kinds = {"image_processor_type": "PixtralImageProcessor", "processor_class": "PixtralProcessor"}
    sides = {"size": {"longest_edge": longest}, "patch_size": {"height": patch, "width": patch}}
    merge = {"spatial_merge_size": _merge(vision)} if _is_merged(vision) else {}
    tokens = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    return {
        "preprocessor_config.json": kinds | sides,
        "processor_config.json": {"processor_class": "PixtralProcessor", "patch_size": patch, **merge, **tokens},
    }


def make_turning(given: Values) -> dict[str, Any]:
    """Which tensors have rows that turn in pairs (names.py): how many, and how many a head has."""
    heads, size = given.needed("n_heads", LARGEST), _head_dim(given)
    keys = (_kv_heads(given) or heads) * size
    found = {} if is_latent(given) else {TEXTS: {"wq": [heads * size, size], "wk": [keys, size]}}
    if (vision := _vision(given)) is not None:
        width, heads = vision.needed("hidden_size", LARGEST), vision.needed("num_attention_heads", LARGEST)
        found[VISION] = {name: [width, width // heads] for name in ("wq", "wk")}
    return found


def _check_kind(given: Values) -> None:
    """ConfigError names what there is that no layers here compute."""
    if (kind := given.text("model_type")) not in (None, "transformer"):
        raise given.wrong("model_type", f"transformer (for {kind} take what its publisher has for transformers)")
    if found := next((name for name in UNKNOWN if given[name]), None):
        raise given.wrong(found, f"none ({UNKNOWN[found]} in Mistral's form are not read)")


def _text(given: Values, beside: Values) -> dict[str, Any]:
    """Of the part that is of texts."""
    found: dict[str, Any] = {own: given.needed(name, LARGEST) for own, name in SIZES.items()}
    found |= {
        "num_key_value_heads": _kv_heads(given) or found["num_attention_heads"],
        "head_dim": _head_dim(given),
        "rms_norm_eps": given.real("norm_eps", 0, 1) or 1e-5,
        "hidden_act": given.text("activation") or "silu",
        "tie_word_embeddings": given.flag("tied_embeddings"),
        "max_position_embeddings": _length(given, beside),
        **_windows(given, found["num_hidden_layers"]),
        **_rope(given),
        **ENDS,
    }
    return found | _kind(given, found)


def _kind(given: Values, found: dict[str, Any]) -> dict[str, Any]:
    """The class, its experts and latents."""
    if is_latent(given):
        return latent_parts(given, found)
    moe = given.object("moe")
    if moe is not None:
        if found.get("layer_types") or given.object("llama_4_scaling"):
            raise given.wrong("moe", "none beside windows by layer and llama_4_scaling")
        experts = moe.needed("num_experts", LARGEST)
        used = {"num_local_experts": experts, "num_experts_per_tok": moe.needed("num_experts_per_tok", experts)}
        return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **used}
    if given.object("llama_4_scaling") is not None:
        return {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}
    if found.get("layer_types"):
        return {"architectures": ["MinistralForCausalLM"], "model_type": "ministral"}
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def _kv_heads(given: Values) -> int | None:
    return given.whole("n_kv_heads", 1, LARGEST)


def _head_dim(given: Values) -> int:
    return given.whole("head_dim", 1, LARGEST) or given.needed("dim", LARGEST) // given.needed("n_heads", LARGEST)


def _length(given: Values, beside: Values) -> int:
    """Tokens of a text; files in this form often leave it to the other one."""
    sources = [given, beside, *filter(None, [beside.object("text_config")])]
    names = ("max_position_embeddings", "max_seq_len")
    told = (one.whole(name, 1, LARGEST) for one in sources for name in names)
    return next((length for length in told if length is not None), LENGTH)


def _windows(given: Values, layers: int) -> dict[str, Any]:
    """One window for all layers, or a list of them, which goes on as it began; null sees all."""
    window = given["sliding_window"]
    if not isinstance(window, list):
        return {
            "sliding_window": int(window)
            if isinstance(window, str) and window.isdecimal()
            else given.whole("sliding_window")
        }
    sizes = {size for size in window if size is not None}
    if not window or len(sizes) > 1 or layers % len(window) or not all(type(size) is int for size in sizes):
        raise given.wrong("sliding_window", f"a number, or a list of null and one number that {layers} layers repeat,")
    kinds = ["full_attention" if size is None else "sliding_attention" for size in window]
    own = kinds * (layers // len(window))
    return {"sliding_window": next(iter(sizes), None), **({"layer_types": own} if len(set(own)) > 1 else {})}


def _rope(given: Values) -> dict[str, Any]:
    """How positions turn queries and keys, and by how much queries grow beyond the length that yarn stretches."""
    found: dict[str, Any] = {"rope_theta": given.real("rope_theta", 0, 1e15, above=True) or 10_000.0}
    yarn, growth = given.object("yarn"), given.object("llama_4_scaling")
    if yarn is not None:
        found |= {"rope_type": "yarn", "factor": yarn.real("factor", 0, 1e15, above=True) or 1.0}
        for own, name in {"beta_fast": "beta", "beta_slow": "alpha"}.items():
            if (number := yarn.real(name, 0, 1e15)) is not None:
                found[own] = number
        if not yarn.flag("apply_scale", absent=True):
            found["attention_factor"] = 1.0
    else:
        found["rope_type"] = "default"
    lengths = {one.needed("original_max_position_embeddings", LARGEST) for one in (growth, yarn) if one is not None}
    if len(lengths) > 1:
        raise given.wrong("llama_4_scaling", "an object with yarn's original_max_position_embeddings")
    if lengths:
        found["original_max_position_embeddings"] = lengths.pop()
    if growth is not None:
        found["llama_4_scaling_beta"] = growth.real("beta", 0, 1e15) or 0.0
    return {"rope_parameters": found}


def _vision(given: Values) -> Values | None:
    media = given.object("multimodal")
    return (media.object("vision_encoder_args") if media is not None else None) or given.object(VISION)


def _is_merged(vision: Values) -> bool:
    return (vision.text("mm_projector_id") or "") == MERGED


def _merge(vision: Values) -> int:
    return vision.whole("spatial_merge_size", 1, 64) or 1


def _seeing(text: dict[str, Any], vision: Values) -> dict[str, Any]:
    """Of Mistral 3, or of Pixtral, which transformers has as LLaVA."""
    merged = _is_merged(vision)
    if merged != vision.flag("add_pre_mm_projector_layer_norm"):
        raise vision.wrong("add_pre_mm_projector_layer_norm", f"{str(merged).lower()} with this mm_projector_id")
    if not merged and _merge(vision) > 1:
        raise vision.wrong("spatial_merge_size", f"1 without the mm_projector_id {MERGED}")
    sizes = {name: vision.needed(name, LARGEST) for name in VISION_SIZES}
    sizes["num_channels"] = vision.whole("num_channels", 1, 64) or 3
    theta = vision.real("rope_theta", 0, 1e15, above=True) or 10_000.0
    tower = {"model_type": "pixtral", "hidden_act": "silu", **sizes, "rope_theta": theta}
    name = "Mistral3" if merged else "Llava"
    return _around(
        text,
        {
            "architectures": [f"{name}ForConditionalGeneration"],
            "model_type": name.lower(),
            "text_config": _inner(text),
            "vision_config": tower,
            "image_token_index": vision.whole("image_token_id", 0, LARGEST) or IMAGE_TOKEN,
            "multimodal_projector_bias": vision.flag("adapter_bias", absent=True),
            "vision_feature_layer": -1,
            **(
                {"spatial_merge_size": _merge(vision)}
                if merged
                else {"vision_feature_select_strategy": "full", "image_seq_length": 1}
            ),
        },
    )


def _inner(text: dict[str, Any]) -> dict[str, Any]:
    """text_config of a model with more parts."""
    return {key: value for key, value in text.items() if key not in ("architectures", "tie_word_embeddings", *ENDS)}


def _around(text: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """config.json of such a model: what stands outside is of all parts."""
    return {**found, "tie_word_embeddings": text["tie_word_embeddings"], "dtype": text["dtype"], **ENDS}


def _quantised(given: Values) -> dict[str, Any] | None:
    """quantization_config of weights that are no floats."""
    own = given.object("quantization") or given.object("quantization_config")
    if own is None:
        return None
    if (own.text("quant_method") or "").replace("_", "-") == "compressed-tensors":
        return {**own.values, "quant_method": "compressed-tensors"}
    one_of(own, "qformat_weight", ("fp8_e4m3",))
    scheme = one_of(own, "qscheme_act", ("TENSOR", "NO_SCALES"), "TENSOR")
    return {
        "quant_method": "fp8",
        "activation_scheme": "static" if scheme == "TENSOR" else "dynamic",
        "modules_to_not_convert": FLOATS,
    }
