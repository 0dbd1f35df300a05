"""SmolLM3: Llama in which each fourth layer does not turn queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

from ...values import Values
from ..family import Family, Windows
from .llama import llama_layer
from .qwen import switched_windows


def some_ropes(given: Values, windows: Windows) -> Sequence[Values | None]:
    """`no_rope_layers` has a 1 for each layer that turns, or each `no_rope_layer_interval`-th does not."""
    turning = given["no_rope_layers"]
    if turning is None:
        every = given.whole("no_rope_layer_interval") or 4
        turning = [int((layer + 1) % every != 0) for layer in range(len(windows))]
    if not isinstance(turning, list) or len(turning) != len(windows) or any(one not in (0, 1) for one in turning):
        raise given.wrong("no_rope_layers", f"a list of {len(windows)} times 0 or 1")
    return [given if one else None for one in turning]


def windows_without_ropes(given: Values, layers: int) -> Windows:
    """With `use_sliding_window`, in the layers that `layer_types` names, or those that do not turn."""
    if given["layer_types"] is not None:
        return switched_windows(given, layers)
    window = given.whole("sliding_window") if given.flag("use_sliding_window") else None
    return tuple(None if turns else window for turns in some_ropes(given, (None,) * layers))


SMOLLM3 = Family(
    architectures=("SmolLM3ForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    absent={"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2_000_000.0},
    windows=windows_without_ropes,
    ropes_of=some_ropes,
)
