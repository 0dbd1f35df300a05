"""What sets one model of the Llama family apart from another, read from its config.json.

Knows JSON values and names of weights; no torch, no files.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..config import ConfigError

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
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


def read_architecture(values: dict[str, Any]) -> Architecture:
    """The architecture that config.json describes; ConfigError says what is not supported, and what is."""
    name = (values.get("architectures") or ["none"])[0]
    if name not in FAMILY:
        raise ConfigError(f"model: the architecture {name} is not supported; these are: {', '.join(FAMILY)}")
    if values.get("quantization_config"):
        raise ConfigError("model: its weights are quantised, which is not supported; take the model in 16 or 32 bits")
    values = ABSENT.get(name, {}) | values
    activation = values.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"model: the activation {activation} is not supported; these are: {', '.join(ACTIVATIONS)}")
    heads = _number(values, "num_attention_heads")
    hidden = _number(values, "hidden_size")
    biased = bool(values.get("attention_bias", False)) and name in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    architecture = Architecture(
        vocab_size=_number(values, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_number(values, "intermediate_size"),
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or hidden // heads,
        norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        windows=_windows(name, values),
        rope=_rope(values),
        qkv_bias=biased or name == "Qwen2ForCausalLM",
        out_bias=biased,
        mlp_bias=bool(values.get("mlp_bias", False)) and name == "LlamaForCausalLM",
        qk_norm=name == "Qwen3ForCausalLM",
        tied=bool(values.get("tie_word_embeddings", False)),
        stored_dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
    )
    _check(architecture)
    return architecture


def _number(values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"model: config.json says {key} = {value!r}; a positive number is needed")
    return value


def _check(shape: Architecture) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"model: {shape.heads} attention heads cannot share {shape.kv_heads} key-value heads")
    if shape.head_dim % 2:
        raise ConfigError(f"model: heads of {shape.head_dim} numbers cannot be rotated; an even number is needed")


def _windows(name: str, values: dict[str, Any]) -> tuple[int | None, ...]:
    """Mistral's window holds in all layers; Qwen's must be switched on and may hold in some; Llama has none."""
    layers = _number(values, "num_hidden_layers")
    window = values.get("sliding_window")
    if name == "LlamaForCausalLM" or window is None:
        return (None,) * layers
    if name == "MistralForCausalLM":
        return (window,) * layers
    if not values.get("use_sliding_window", False):
        return (None,) * layers
    kinds = values.get("layer_types")
    if kinds is None:
        first = values.get("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != layers:
        raise ConfigError(f"model: layer_types must be {layers} of full_attention and sliding_attention, not {kinds}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(values: dict[str, Any]) -> Rope:
    """`rope_parameters` as transformers 5 writes it, or `rope_theta` and `rope_scaling` as older versions do."""
    numbers = dict(values.get("rope_scaling") or values.get("rope_parameters") or {})
    theta = numbers.pop("rope_theta", None) or values.get("rope_theta") or 10_000.0
    kind = numbers.pop("rope_type", None) or numbers.pop("type", None) or "default"
    numbers.pop("type", None)
    if kind not in ROPE_NUMBERS:
        raise ConfigError(f"model: the rope type {kind} is not supported; these are: {', '.join(ROPE_NUMBERS)}")
    if (numbers.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ConfigError("model: a partial_rotary_factor other than 1 is not supported")
    if kind == "llama3" and numbers.get("original_max_position_embeddings") is None:
        numbers["original_max_position_embeddings"] = values.get("max_position_embeddings")
    needed = ROPE_NUMBERS[kind]
    for key in needed:
        if not isinstance(numbers.get(key), int | float) or numbers[key] <= 0:
            raise ConfigError(f"model: the rope type {kind} needs {key}, and config.json says {numbers.get(key)!r}")
    return Rope(kind=kind, theta=float(theta), numbers={key: float(numbers[key]) for key in needed})
