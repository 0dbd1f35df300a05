"""Granite 3 and 4 (dense): Llama with factors for embeddings, scores, what layers add, and logits."""

from __future__ import annotations

from typing import Any

from ...values import Values
from ..family import Family
from .llama import llama_layer

LARGEST = 1e9
FIELDS = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "scale": "attention_multiplier",
}


def multipliers(given: Values) -> dict[str, Any]:
    """All of them are 1 where they are missing; logits are divided."""
    found = {name: given.real(field, 0, LARGEST, above=True) for name, field in FIELDS.items()}
    divisor = given.real("logits_scaling", 0, LARGEST, above=True) or 1.0
    return {name: 1.0 if value is None else value for name, value in found.items()} | {
        "logits_scale": 1 / divisor,
        "scales_inputs": True,
    }


GRANITE = Family(
    architectures=("GraniteForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    more=multipliers,
)
