"""What sets one model of the Llama family apart from another, read from its config.json.

Knows JSON values and names of weights; no torch, no files. config.json comes from strangers: each value is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..options.config import ConfigError
from .values import Values

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LARGEST = 1 << 24  # of a size, words of the vocabulary included: beyond it a value is a mistake
MOST_LAYERS = 1 << 12
FARTHEST = 1e15  # of a number of the rotation
ACTIVATIONS = ("silu", "swish")  # two names of one function
ROPE_NUMBERS = {  # the rope types that are supported, and the numbers that each needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
ABSENT = {  # what transformers takes where config.json lacks the key
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
}


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """How positions turn queries and keys."""

    kind: str = "default"
    theta: float = 10_000.0
    numbers: dict[str, float] = {}


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]  # by layer: how many tokens back it sees, itself included; None: all
    rope: Rope
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    stored_dtype: str = "float32"

    @property
    def layers(self) -> int:
        return len(self.windows)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the checkpoint must hold, with its shape."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes |= {prefix + name: shape for name, shape in self._layer_tensors().items()}
        return shapes

    def _layer_tensors(self) -> dict[str, tuple[int, ...]]:
        hidden, middle = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {  # name: (outputs, inputs, has a bias)
            "self_attn.q_proj": (queries, hidden, self.qkv_bias),
            "self_attn.k_proj": (keys, hidden, self.qkv_bias),
            "self_attn.v_proj": (keys, hidden, self.qkv_bias),
            "self_attn.o_proj": (hidden, queries, self.out_bias),
            "mlp.gate_proj": (middle, hidden, self.mlp_bias),
            "mlp.up_proj": (middle, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, middle, self.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        shapes["post_attention_layernorm.weight"] = (hidden,)
        for name, (outputs, inputs, bias) in linears.items():
            shapes[f"{name}.weight"] = (outputs, inputs)
            if bias:
                shapes[f"{name}.bias"] = (outputs,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        return shapes


def read_architecture(values: dict[str, Any], file: Path | str = "config.json") -> Architecture:
    """The architecture that config.json describes; ConfigError says what is not supported, and what is."""
    name = architecture_name(Values(file, values))
    if name not in FAMILY:
        raise ConfigError(f"model: the architecture {name} is not supported; these are: {', '.join(FAMILY)} ({file})")
    if values.get("quantization_config"):
        raise ConfigError(
            "model: its weights are quantised, which is not supported (quantization_config in config.json); "
            "take the model in 16 or 32 bits"
        )
    given = Values(file, ABSENT.get(name, {}) | values)
    activation = given.text("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"model: the activation {activation} is not supported; these are: {', '.join(ACTIVATIONS)} ({file})"
        )
    heads, hidden = given.needed("num_attention_heads", LARGEST), given.needed("hidden_size", LARGEST)
    biased = given.flag("attention_bias") and name in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    architecture = Architecture(
        vocab_size=given.needed("vocab_size", LARGEST),
        hidden_size=hidden,
        intermediate_size=given.needed("intermediate_size", LARGEST),
        heads=heads,
        kv_heads=given.whole("num_key_value_heads", 1, LARGEST) or heads,
        head_dim=given.whole("head_dim", 1, LARGEST) or hidden // heads,
        norm_eps=_or(given.real("rms_norm_eps", 0, 1), 1e-6),
        windows=_windows(name, given),
        rope=_rope(given),
        qkv_bias=biased or name == "Qwen2ForCausalLM",
        out_bias=biased,
        mlp_bias=given.flag("mlp_bias") and name == "LlamaForCausalLM",
        qk_norm=name == "Qwen3ForCausalLM",
        tied=given.flag("tie_word_embeddings"),
        stored_dtype=given.text("dtype") or given.text("torch_dtype") or "float32",
    )
    _check(architecture, file)
    return architecture


def architecture_name(given: Values) -> str:
    """The first of `architectures`."""
    names = given["architectures"]
    if names is None or names == []:
        raise ConfigError(f"model: {given.file} names no architecture (architectures)")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise given.wrong("architectures", "a list of names")
    return str(names[0])


def shard_shape(shape: Architecture, size: int) -> Architecture:
    """The shape of the part that one of `size` workers has. ConfigError if the model cannot be cut into so many."""
    for name, number in (("attention heads", shape.heads), ("numbers in its MLP", shape.intermediate_size)):
        if number % size:
            raise ConfigError(f"--tensor-parallel-size: the model has {number} {name}, which {size} does not divide")
    if max(shape.kv_heads, size) % min(shape.kv_heads, size):
        raise ConfigError(f"--tensor-parallel-size: {shape.kv_heads} KV heads cannot be shared by {size}")
    return msgspec.structs.replace(
        shape,
        heads=shape.heads // size,
        kv_heads=max(1, shape.kv_heads // size),
        intermediate_size=shape.intermediate_size // size,
    )


def _or(value: float | None, absent: float) -> float:
    return absent if value is None else value


def _check(shape: Architecture, file: Path | str) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"model: {shape.heads} attention heads cannot share {shape.kv_heads} of keys ({file})")
    if shape.head_dim % 2 or not shape.head_dim:
        raise ConfigError(f"model: heads of {shape.head_dim} numbers cannot be rotated; it must be even ({file})")


def _windows(name: str, given: Values) -> tuple[int | None, ...]:
    """Mistral's window holds in all layers; Qwen's must be switched on and may hold in some; Llama has none."""
    layers = given.needed("num_hidden_layers", MOST_LAYERS)
    window = given.whole("sliding_window")
    if name == "LlamaForCausalLM" or window is None:
        return (None,) * layers
    if name == "MistralForCausalLM":
        return (window,) * layers
    if not given.flag("use_sliding_window"):
        return (None,) * layers
    kinds = given["layer_types"]
    if kinds is None:
        first = given.whole("max_window_layers", 0)
        return tuple(window if layer >= (28 if first is None else first) else None for layer in range(layers))
    allowed = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in allowed for kind in kinds):
        raise given.wrong("layer_types", f"a list of {layers} times {' or '.join(allowed)}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(given: Values) -> Rope:
    """`rope_parameters` as transformers 5 writes it, or `rope_theta` and `rope_scaling` as older versions do."""
    rope = given.object("rope_scaling") or given.object("rope_parameters") or Values(given.file, {})
    theta = rope.real("rope_theta", 0, FARTHEST) or given.real("rope_theta", 0, FARTHEST) or 10_000.0
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind not in ROPE_NUMBERS:
        raise ConfigError(
            f"model: the rope type {kind} is not supported; these are: {', '.join(ROPE_NUMBERS)} ({rope.file})"
        )
    for holder in (rope, given):
        if holder.real("partial_rotary_factor", 0, 1) not in (None, 0.0, 1.0):
            raise ConfigError(f"model: a partial_rotary_factor other than 1 is not supported ({holder.file})")
    numbers = {key: rope.real(key, 0, FARTHEST, above=True) for key in ROPE_NUMBERS[kind]}
    if "original_max_position_embeddings" in numbers and numbers["original_max_position_embeddings"] is None:
        numbers["original_max_position_embeddings"] = given.real("max_position_embeddings", 0, FARTHEST, above=True)
    known = {key: number for key, number in numbers.items() if number is not None}
    if missing := [key for key in numbers if key not in known]:
        raise ConfigError(f"model: the rope type {kind} needs {', '.join(missing)}, and {rope.file} has none")
    if kind == "llama3" and known["low_freq_factor"] >= known["high_freq_factor"]:
        raise rope.wrong("low_freq_factor", f"less than high_freq_factor, {known['high_freq_factor']:g},")
    return Rope(kind=kind, theta=theta, numbers=known)
