"""Llama, whose names of tensors most families took over."""

from __future__ import annotations

from ...layers import Axis, LayerSpec, LinearSpec
from ..family import Family


def llama_layer(
    qkv_bias: bool | str = False, out_bias: bool | str = False, mlp_bias: bool | str = False, qk_norm: bool = False
) -> LayerSpec:
    """A layer with q, k, v, gate and up apart. Biases: as in LinearSpec."""
    return LayerSpec(
        qkv=(
            LinearSpec("self_attn.q_proj", (Axis.QUERIES,), Axis.HIDDEN, qkv_bias),
            LinearSpec("self_attn.k_proj", (Axis.KEYS,), Axis.HIDDEN, qkv_bias),
            LinearSpec("self_attn.v_proj", (Axis.VALUES,), Axis.HIDDEN, qkv_bias),
        ),
        q_norm="self_attn.q_norm" if qk_norm else None,
        k_norm="self_attn.k_norm" if qk_norm else None,
        out=LinearSpec("self_attn.o_proj", (Axis.HIDDEN,), Axis.QUERIES, out_bias),
        gate_up=(
            LinearSpec("mlp.gate_proj", (Axis.INTERMEDIATE,), Axis.HIDDEN, mlp_bias),
            LinearSpec("mlp.up_proj", (Axis.INTERMEDIATE,), Axis.HIDDEN, mlp_bias),
        ),
        down=LinearSpec("mlp.down_proj", (Axis.HIDDEN,), Axis.INTERMEDIATE, mlp_bias),
    )


LLAMA = Family(
    architectures=("LlamaForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
)
