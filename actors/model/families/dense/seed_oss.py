"""Seed-OSS: Llama with biases of q, k and v, and a field of its own for that behind attention."""

from __future__ import annotations

from ..family import Family
from .llama import llama_layer

SEED_OSS = Family(
    architectures=("SeedOssForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    absent={"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True},
)
