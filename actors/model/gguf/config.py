"""config.json and generation_config.json of what a GGUF file's header says."""

from __future__ import annotations

import struct
from typing import Any

from ...options.config import ConfigError
from ..values import Values
from .header import BY_NAME, GgufHeader
from .names import ARCHITECTURES

LARGEST = 1 << 24
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
QUANTISED = frozenset(BY_NAME) - FLOATS.keys()
NO_MODEL = "a file of a model is needed"
UNKNOWN = (  # fields below the architecture's name that change what is computed, and that no supported model has
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_scale",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.scaling.yarn_log_multiplier",
)
END_TEXTS = frozenset(  # of control tokens that end an answer, in whatever model they are
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|eom_id|> <EOT> _<EOT> <|end_of_text|> "
    "<|return|> <|call|> <｜end▁of▁sentence｜> <end_of_utterance>".split()
)
SAMPLING = {  # general.sampling.…, and the name in generation_config.json
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
CONTROL = 3  # a kind of token


class Fields(Values):
    """The fields of one architecture, by the end of their names."""

    def __init__(self, header: GgufHeader) -> None:
        super().__init__(header.file, header.fields)
        self.architecture = self.text("general.architecture") or ""
        kind = self.text("general.type")
        if kind not in (None, "model"):
            raise ConfigError(f"model: {self.file} is of the type {kind} (general.type); {NO_MODEL}")
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            said = f"the architecture {self.architecture}" if self.architecture else "a file without an architecture"
            raise ConfigError(
                f"model: {said} (general.architecture) is not supported in GGUF; these are: {known} ({self.file})"
            )

    def own(self, name: str) -> str:
        """`llama.block_count`."""
        return f"{self.architecture}.{name}"

    def same(self, name: str) -> int | None:
        """A number, or a list of numbers for each layer that are the same."""
        key = self.own(name)
        value = self[key]
        if isinstance(value, list) and value and all(number == value[0] for number in value):
            return Values(self.file, {key: value[0]}).whole(key, 1, LARGEST)
        return self.whole(key, 1, LARGEST)


def make_config(header: GgufHeader, keep_quantised: bool) -> dict[str, Any]:
    """config.json; with `keep_quantised` quantised weights are not to be decoded to floating point."""
    fields = Fields(header)
    for name in UNKNOWN:
        if fields[fields.own(name)]:
            raise ConfigError(f"model: {header.file} has {fields.own(name)}, which is not supported")
    if fields.flag(fields.own("attention.causal"), absent=True) is False:
        raise ConfigError(
            f"model: {header.file} is a model whose tokens see later ones ({fields.own('attention.causal')})"
        )
    heads, hidden = fields.needed(fields.own("attention.head_count"), LARGEST), _needed(fields, "embedding_length")
    head_dim = fields.whole(fields.own("attention.key_length"), 1, LARGEST) or hidden // heads
    values_dim = fields.whole(fields.own("attention.value_length"), 1, LARGEST) or head_dim
    if values_dim != head_dim:
        raise fields.wrong(fields.own("attention.value_length"), f"as many as keys have, {head_dim},")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[fields.architecture]],
        "model_type": fields.architecture,
        "vocab_size": _words(header),
        "hidden_size": hidden,
        "intermediate_size": _same(fields, "feed_forward_length"),
        "num_hidden_layers": _needed(fields, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.same("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position_embeddings": _needed(fields, "context_length"),
        "rms_norm_eps": fields.real(fields.own("attention.layer_norm_rms_epsilon"), 0, 1),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors and fields.architecture != "qwen2",
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "dtype": _stored_dtype(header),
        **_rotation(fields, header, head_dim),
        **_window(fields),
    }
    if config["rms_norm_eps"] is None:
        raise fields.wrong(fields.own("attention.layer_norm_rms_epsilon"), "a number")
    if keep_quantised and any(tensor.type.name in QUANTISED for tensor in header.tensors.values()):
        config["quantization_config"] = {"quant_method": "gguf"}
    return config


def make_generation_config(header: GgufHeader) -> dict[str, Any]:
    """What ends an answer, and sampling defaults where the file has some."""
    fields = Values(header.file, header.fields)
    words = _words(header)
    ends = [fields.whole(f"tokenizer.ggml.{name}_token_id", 0, words - 1) for name in ("eos", "eot", "eom")]
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if isinstance(tokens, list) and isinstance(kinds, list):
        pairs = enumerate(zip(tokens, kinds, strict=False))
        ends += [token for token, (text, kind) in pairs if kind == CONTROL and text in END_TEXTS and token < words]
    found: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    for name, ours in SAMPLING.items():
        value = fields[f"general.sampling.{name}"]
        if value is not None:
            found[ours] = value
    return found


def _needed(fields: Fields, name: str) -> int:
    return fields.needed(fields.own(name), LARGEST)


def _same(fields: Fields, name: str) -> int:
    value = fields.same(name)
    if value is None:
        raise fields.wrong(fields.own(name), f"a whole number from 1 to {LARGEST}")
    return value


def _words(header: GgufHeader) -> int:
    """As many as embeddings have rows."""
    table = header.tensors.get("token_embd.weight")
    if table is None:
        raise ConfigError(f"model: {header.file} has no token_embd.weight; {NO_MODEL}")
    return table.shape[0]


def _stored_dtype(header: GgufHeader) -> str:
    """That of most numbers; of quantised ones the type in which a GPU computes with them."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.size
    return FLOATS.get(max(sizes, key=sizes.__getitem__), "bfloat16")


def _window(fields: Fields) -> dict[str, Any]:
    """A file of Mistral says that it is Llama, and has a window."""
    window = fields.whole(fields.own("attention.sliding_window"), 0, LARGEST) or None
    if fields.architecture == "phi3":
        return {"sliding_window": window}
    if window is None:
        return {}
    if fields.architecture == "llama":
        return {"sliding_window": window, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    raise ConfigError(f"model: {fields.file} has {fields.own('attention.sliding_window')}, which is not supported")


def _rotation(fields: Fields, header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """rope_theta, rope_scaling and how much of a head turns."""
    turning = fields.whole(fields.own("rope.dimension_count"), 1, LARGEST) or head_dim
    theta = fields.real(fields.own("rope.freq_base"), 0, 1e15, above=True) or 10_000.0
    if turning > head_dim or (turning != head_dim and fields.architecture != "phi3"):
        raise fields.wrong(fields.own("rope.dimension_count"), f"all numbers of a head, {head_dim},")
    found = {"rope_theta": theta, "partial_rotary_factor": turning / head_dim if turning != head_dim else None}
    scaling = _scaling(fields, header, turning // 2)
    original = scaling.get("original_max_position_embeddings") if scaling else None
    return found | {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _scaling(fields: Fields, header: GgufHeader, pairs: int) -> dict[str, Any] | None:
    """Factors of each pair of numbers, which stand in tensors; a factor of all; or none."""
    kind = fields.text(fields.own("rope.scaling.type")) or "none"
    factor = fields.real(fields.own("rope.scaling.factor"), 0, 1e15, above=True)
    length = _needed(fields, "context_length")
    original = fields.whole(fields.own("rope.scaling.original_context_length"), 1, LARGEST) or length
    long = {"rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": original}
    if "rope_factors_long.weight" in header.tensors:
        attention = fields.real(fields.own("rope.scaling.attn_factor"), 0, 1e15, above=True) or 1.0
        names = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
        return (
            long
            | {ours: _factors(header, name, pairs) for ours, name in names.items()}
            | {"attention_factor": attention}
        )
    if "rope_freqs.weight" in header.tensors:
        factors = _factors(header, "rope_freqs.weight", pairs)
        both = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}  # for all texts
        return long | both | {"original_max_position_embeddings": length}
    if kind == "linear" and factor not in (None, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if kind not in ("none", "linear"):
        raise fields.wrong(fields.own("rope.scaling.type"), "none, linear, or a tensor of factors beside it")
    return None


def _factors(header: GgufHeader, name: str, count: int) -> list[float]:
    """A small tensor of float32."""
    tensor = header.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (count,):
        raise ConfigError(f"model: {header.file}: {count} numbers of float32 are needed as {name}")
    with header.file.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{count}f", file.read(tensor.size)))
