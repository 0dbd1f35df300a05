"""GLM-4 (dense, 0414): norms before and behind attention and MLP, half of a head turns, gate and up are one tensor."""

from __future__ import annotations

import msgspec

from ...layers import Axis, LinearSpec
from ..family import Family
from .llama import llama_layer

GLM4 = Family(
    architectures=("Glm4ForCausalLM",),
    layer=msgspec.structs.replace(
        llama_layer(qkv_bias="attention_bias"),
        attention_post_norm="post_self_attn_layernorm",
        gate_up=(LinearSpec("mlp.gate_up_proj", (Axis.INTERMEDIATE, Axis.INTERMEDIATE), Axis.HIDDEN),),
        mlp_post_norm="post_mlp_layernorm",
    ),
    absent={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-07,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    partial_rotary=True,
    interleaved=True,
)
