"""Phi-3, Phi-3.5 and Phi-4 (mini, 14B): Llama with q, k, v fused in the checkpoint, and gate and up."""

from __future__ import annotations

from ...layers import Axis, LayerSpec, LinearSpec
from ..family import Family, same_windows

PHI3 = Family(
    architectures=("Phi3ForCausalLM",),
    layer=LayerSpec(
        qkv=(LinearSpec("self_attn.qkv_proj", (Axis.QUERIES, Axis.KEYS, Axis.VALUES), Axis.HIDDEN),),
        out=LinearSpec("self_attn.o_proj", (Axis.HIDDEN,), Axis.QUERIES),
        gate_up=(LinearSpec("mlp.gate_up_proj", (Axis.INTERMEDIATE, Axis.INTERMEDIATE), Axis.HIDDEN),),
        down=LinearSpec("mlp.down_proj", (Axis.HIDDEN,), Axis.INTERMEDIATE),
    ),
    absent={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    windows=same_windows,
    ropes={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},  # older names of it
    partial_rotary=True,
)
