"""Qwen2 with biases of q, k and v, and Qwen3 with norms of q and k; windows where they are switched on."""

from __future__ import annotations

from ...values import Values
from ..family import Family, Windows, check_layer_types
from .llama import llama_layer

ABSENT = {"num_key_value_heads": 32, "sliding_window": 4096}
FIRST_WINDOW = 28  # the first layer with one, where nothing says which it is


def switched_windows(given: Values, layers: int) -> Windows:
    """With `use_sliding_window`, in the layers that `layer_types` names, or from `max_window_layers` on."""
    if not given.flag("use_sliding_window"):  # transformers then writes 0 or null as the window
        return (None,) * layers
    window = given.whole("sliding_window")
    if window is None:
        return (None,) * layers
    kinds = given["layer_types"]
    if kinds is None:
        first = given.whole("max_window_layers", 0)
        return tuple(window if layer >= (FIRST_WINDOW if first is None else first) else None for layer in range(layers))
    check_layer_types(given, kinds, layers)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


QWEN2 = Family(
    architectures=("Qwen2ForCausalLM",),
    layer=llama_layer(qkv_bias=True),
    absent=ABSENT,
    windows=switched_windows,
)
QWEN3 = Family(
    architectures=("Qwen3ForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True),
    absent={**ABSENT, "head_dim": 128},
    windows=switched_windows,
)
