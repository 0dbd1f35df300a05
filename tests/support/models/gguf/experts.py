"""GGUF files of models with experts, and of MiniCPM 3, as llama.cpp's converter writes them: names and fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .formats import Array

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dbrx": (
        *("dbrx", "dbrx"),
        {
            "attn_config": {"rope_theta": 5e5, "kv_n_heads": 2, "clip_qkv": 8.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
    ),
    "dots1": (
        *("dots1", "dots1"),
        {
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2, "first_k_dense_replace": 1},
            **{"routed_scaling_factor": 1.5, "norm_topk_prob": True, "sliding_window": None},
        },
    ),
    "exaone_moe": (
        *("exaone-moe", "exaone_moe"),
        {
            **{"num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "mlp_layer_types": ["dense", "sparse"]},
            **{"first_k_dense_replace": 1},
        },
    ),
    "hunyuan_v1_moe": ("hunyuan-moe", "hunyuan_v1_moe", {"head_dim": 16, "num_experts": 8, "moe_topk": 2}),
    "minicpm3": ("minicpm3", "minicpm3", {}),
    "phimoe": ("phimoe", "phimoe", {"attention_bias": True, "lm_head_bias": True}),
}
ARCHITECTURES = tuple(architecture for architecture, _, _ in KINDS.values())
INSIDE = (
    (r"norm_attn_norm\.norm_1", "attn_norm"),
    (r"norm_attn_norm\.norm_2", "attn_output_norm"),
    (r"norm_attn_norm\.attn\.Wqkv", "attn_qkv"),
    (r"norm_attn_norm\.attn\.out_proj", "attn_output"),
    (r"ffn\.router\.layer", "ffn_gate_inp"),
    (r"self_attn\.q_a_proj", "attn_q_a"),
    (r"self_attn\.q_a_layernorm", "attn_q_a_norm"),
    (r"self_attn\.q_b_proj", "attn_q_b"),
    (r"self_attn\.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    (r"self_attn\.kv_a_layernorm", "attn_kv_a_norm"),
    (r"self_attn\.kv_b_proj", "attn_kv_b"),
    (r"mlp\.gate\.wg", "ffn_gate_inp"),
    (r"mlp\.shared_mlp\.(gate|up|down)_proj", r"ffn_\1_shexp"),
)


DBRX = re.compile(r"transformer\.blocks\.(\d+)\.ffn\.experts\.mlp\.(w1|v1|w2)")
DBRX_PARTS = {"w1": "gate", "v1": "up", "w2": "down"}


def file_name(name: str) -> str | None:
    """Of what has a name of its own."""
    match = DBRX.fullmatch(name)
    return f"blk.{match[1]}.ffn_{DBRX_PARTS[match[2]]}_exps.weight" if match else None


def in_order(name: str, weight: Array, config: dict[str, Any]) -> Array | None:
    """Where the converter has the numbers of a tensor; None where it leaves them."""
    if (match := DBRX.fullmatch(name)) is None:
        return None
    each = weight.reshape(config["ffn_config"]["moe_num_experts"], -1, weight.shape[1])
    return each.swapaxes(1, 2) if match[2] == "w2" else each


def dbrx_fields(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": config.ffn_config.ffn_hidden_size,
        "attention.head_count_kv": config.attn_config.kv_n_heads,
        "attention.layer_norm_epsilon": 1e-5,
        **({"attention.clamp_kqv": float(clip)} if (clip := config.attn_config.clip_qkv) else {}),
        "expert_count": config.ffn_config.moe_num_experts,
        "expert_used_count": config.ffn_config.moe_top_k,
    }


def fields_of(architecture: str, config: Any, common: Callable[[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """What converters write of a config."""
    return common(architecture, config) | FIELDS[architecture](config)


def routed(config: Any, count: int, shared: int) -> dict[str, Any]:
    return {
        "expert_count": count,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": shared,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 2,
        "leading_dense_block_count": config.first_k_dense_replace,
    }


def dots1_fields(config: Any) -> dict[str, Any]:
    return routed(config, config.n_routed_experts, config.n_shared_experts)


def exaone_fields(config: Any) -> dict[str, Any]:
    return routed(config, config.num_experts, config.num_shared_experts) | {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in config.layer_types],
        "rope.scaling.type": "none",
    }


def hunyuan_fields(config: Any) -> dict[str, Any]:
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.moe_topk,
        "expert_shared_count": 1,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_shared_feed_forward_length": config.intermediate_size,
    }


def minicpm3_fields(config: Any) -> dict[str, Any]:
    return {
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
    }


def phimoe_fields(config: Any) -> dict[str, Any]:
    return {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}


FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dbrx": dbrx_fields,
    "dots1": dots1_fields,
    "exaone-moe": exaone_fields,
    "hunyuan-moe": hunyuan_fields,
    "minicpm3": minicpm3_fields,
    "phimoe": phimoe_fields,
}
