"""Mistral: Llama without biases, and with a window in all layers."""

from __future__ import annotations

from .family import Family, same_windows
from .llama import llama_layer

MISTRAL = Family(
    architectures=("MistralForCausalLM",),
    layer=llama_layer(),
    absent={"num_key_value_heads": 8, "sliding_window": 4096},
    windows=same_windows,
)
