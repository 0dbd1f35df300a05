"""GGUF files of models whose layers have states, as llama.cpp's converter writes them: names, order and fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .formats import Array

LINEAR, FULL = "linear_attention", "full_attention"
TWO = {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "falcon_h1": (
        *("falcon-h1", "falcon_h1"),
        {
            **{"mamba_rms_norm": True, "mamba_norm_before_gate": False, "embedding_multiplier": 1.5},
            **{"lm_head_multiplier": 0.7, "key_multiplier": 0.6, "attention_in_multiplier": 1.2},
            **{"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.8},
            **{"mlp_multipliers": [0.7, 1.4], "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 1.3]},
        },
    ),
    "granitemoehybrid": (
        *("granitehybrid", "granitemoehybrid"),
        TWO | {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    ),
    "granitemoehybrid_dense": ("granitehybrid", "granitemoehybrid", TWO | {"num_local_experts": 0}),
    "jamba": ("jamba", "jamba", {}),
    "kimi_linear": (
        "kimi-linear",
        "kimi_linear",
        TWO | {"mlp_layer_types": ["dense", "sparse"], "qk_nope_head_dim": 32},
    ),
    "mamba2": ("mamba2", "mamba2", {}),
    "nemotron_h": ("nemotron_h", "nemotron_h", {"layers_block_type": [LINEAR, "mlp", FULL, "mlp"]}),
    "nemotron_h_moe": (
        *("nemotron_h_moe", "nemotron_h"),
        {"layers_block_type": [LINEAR, "moe", FULL, "moe"], "routed_scaling_factor": 1.5},
    ),
    "qwen3_5": ("qwen35", "qwen3_5_text", TWO),
    "qwen3_5_moe": ("qwen35moe", "qwen3_5_moe_text", TWO),
    "qwen3_next": ("qwen3next", "qwen3_next", TWO),
}
ARCHITECTURES = tuple({architecture for architecture, _, _ in KINDS.values()})
BEHIND = ("qwen35", "qwen35moe", "qwen3next")
INSIDE = (
    (r"mixer\.([qkvo])_proj", r"attn_\1"),
    (r"mamba\.(dt|b|c)_layernorm", r"ssm_\1_norm"),
    (r"self_attn\.(f_a|f_b|g_a|g_b)_proj", r"ssm_\1"),
    (r"self_attn\.([qkv])_conv1d", r"ssm_conv1d_\1"),
    (r"self_attn\.b_proj", "ssm_beta"),
    (r"self_attn\.o_norm", "ssm_norm"),
    (r"block_sparse_moe\.(gate|up|down)_proj", r"ffn_\1"),  # as transformers stores what the hub calls mlp
    (r"block_sparse_moe\.shared_experts\.(gate|up|down)_proj", r"ffn_\1_shexp"),
    (r"linear_attn\.in_proj_qkv", "attn_qkv"),
    (r"linear_attn\.in_proj_z", "attn_gate"),
    (r"linear_attn\.in_proj_a", "ssm_alpha"),
    (r"linear_attn\.in_proj_b", "ssm_beta"),
    (r"linear_attn\.in_proj_ba", "ssm_ba"),
    (r"linear_attn\.out_proj", "ssm_out"),
    (r"mlp\.shared_expert_gate", "ffn_gate_inp_shexp"),
)


def file_name(name: str) -> str | None:
    """Of what has a name of its own."""
    if match := re.fullmatch(r"\w+\.layers\.(\d+)\.\w+\.(A_log|D|dt_bias)", name):
        return f"blk.{match[1]}.ssm_{({'A_log': 'a', 'D': 'd'}).get(match[2], 'dt.bias')}"
    if match := re.fullmatch(r"backbone\.layers\.(\d+)\.mixer\.o_proj\.weight", name):
        return f"blk.{match[1]}.attn_output.weight"
    return None


def pairs(weight: Array, heads: int) -> Array:
    """x0 y0 x1 y1 …, head by head."""
    width = len(weight) // heads
    order = [
        head * width + half * width // 2 + at for head in range(heads) for at in range(width // 2) for half in (0, 1)
    ]
    return weight[order]


def in_turn(weight: Array, keys: int, values: int) -> Array:
    """Heads of values: the first of each head of keys, then the second of each, …"""
    each, width = values // keys, len(weight) // values
    order = [(key * each + one) * width + at for one in range(each) for key in range(keys) for at in range(width)]
    return weight[order]


def in_order(name: str, weight: Array, config: dict[str, Any]) -> Array | None:
    """Where the converter has the numbers of a tensor; None where it leaves them."""
    kind = config["model_type"]
    if kind in ("granitemoehybrid", "nemotron_h") and (match := re.search(r"\.([qk])_proj\.weight", name)):
        return pairs(weight, config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"])
    if kind.startswith("qwen3_5") and "linear_attn" in name and "linear_attn.norm" not in name:
        return of_values(name, weight, config)
    if kind in ("mamba2", "granitemoehybrid", "falcon_h1", "nemotron_h"):
        if name.endswith(("A_log", ".D")):
            return weight[:, None]
        if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            return weight.reshape(int(config.get("n_groups") or config["mamba_n_groups"]), -1)
    if name.endswith("shared_expert_gate.weight"):
        return weight.reshape(-1)
    if name.endswith("_conv1d.weight"):
        return weight[None, :, 0][:, :, None]
    return None


def folded(config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of weights that the converter has multiplied."""
    if config["model_type"] != "falcon_h1":
        return {}
    return {
        name: [1.0] * len(value) if isinstance(value, list) else 1.0
        for name, value in config.items()
        if name.endswith(("_multiplier", "_multipliers"))
    }


def multiplied(name: str, weight: Array, config: dict[str, Any]) -> Array:
    """As the converter of Falcon-H1 has it."""
    if config["model_type"] != "falcon_h1":
        return weight
    into, gates = config["attention_in_multiplier"], config["mlp_multipliers"]
    by = {
        "down_proj": gates[1],
        "gate_proj": gates[0],
        "k_proj": config["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    if name.endswith("in_proj.weight"):
        inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, state, state, len(weight) - 2 * inner - 2 * state)
        rows = np.repeat(config["ssm_multipliers"], sizes)[:, None] * config["ssm_in_multiplier"]
        return np.asarray(weight * rows, np.float32)
    return np.asarray(weight * by.get(name.split(".")[-2], 1.0), np.float32)


def of_values(name: str, weight: Array, config: dict[str, Any]) -> Array:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    before = 2 * keys * config["linear_key_head_dim"]
    if "conv1d" in name:
        weight = weight[:, 0]
    if "conv1d" in name or "in_proj_qkv" in name:
        return np.concatenate([weight[:before], in_turn(weight[before:], keys, values)])
    if "out_proj" in name:
        return in_turn(weight.T, keys, values).T
    return in_turn(weight, keys, values)


def apart(name: str, weight: Array, config: dict[str, Any]) -> dict[str, Array] | None:
    """What becomes several tensors."""
    if name.endswith("kv_b_proj.weight") and config["model_type"] == "kimi_linear":
        heads = weight.reshape(config["num_attention_heads"], -1, weight.shape[1])
        keys, layer = config["qk_nope_head_dim"], f"blk.{name.split('.')[2]}"
        return {
            f"{layer}.attn_k_b.weight": heads[:, :keys].swapaxes(1, 2),
            f"{layer}.attn_v_b.weight": heads[:, keys:],
        }
    if not name.endswith("in_proj_qkvz.weight"):
        return None
    keys, each = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    k, v = config["linear_key_head_dim"], config["linear_value_head_dim"] * each
    heads = weight.reshape(keys, -1, weight.shape[1])
    cuts = ((0, k), (k, 2 * k), (2 * k, 2 * k + v), (2 * k + v, 2 * k + 2 * v))
    q, key, value, z = (np.concatenate([head[first:last] for head in heads]) for first, last in cuts)
    layer = f"blk.{name.split('.')[2]}"
    return {f"{layer}.attn_qkv.weight": np.concatenate([q, key, value]), f"{layer}.attn_gate.weight": z}


def together(parts: list[Array], config: dict[str, Any]) -> Array:
    """And back, head by head."""
    if config["model_type"] == "kimi_linear":
        whole = np.concatenate([parts[0].swapaxes(1, 2), parts[1]], 1)
        return whole.reshape(-1, whole.shape[-1])
    qkv, z = parts
    keys, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    v = len(z) // keys
    found = []
    for head in range(keys):
        found += [qkv[head * width :][:width], qkv[(keys + head) * width :][:width]]
        found += [qkv[2 * keys * width + head * v :][:v], z[head * v :][:v]]
    return np.concatenate(found)


def fields_of(architecture: str, config: Any, common: Callable[[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """What converters write of a config."""
    own = FIELDS[architecture](config)
    if architecture == "mamba2":
        return own
    return common(architecture, config) | own


def mamba2_fields(config: Any) -> dict[str, Any]:
    return {
        "context_length": 1 << 20,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.num_hidden_layers,
        "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.num_heads * config.head_dim,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.num_heads,
        "ssm.group_count": config.n_groups,
    }


def scan_fields(config: Any) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_n_heads,
        "ssm.group_count": config.mamba_n_groups,
    }


def kv_heads(config: Any, kinds: list[str]) -> dict[str, Any]:
    return {"attention.head_count_kv": [config.num_key_value_heads * (kind == FULL) for kind in kinds]}


def granite_fields(config: Any) -> dict[str, Any]:
    experts = {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    return (
        scan_fields(config)
        | kv_heads(config, config.layer_types)
        | {
            "attention.scale": float(config.attention_multiplier),
            "embedding_scale": float(config.embedding_multiplier),
            "residual_scale": float(config.residual_multiplier),
            "logit_scale": float(config.logits_scaling),
            "expert_shared_feed_forward_length": config.shared_intermediate_size,
            "rope.scaling.finetuned": False,
            **(experts if config.num_local_experts else {}),
        }
    )


def jamba_fields(config: Any) -> dict[str, Any]:
    return kv_heads(config, config.layer_types) | {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_dt_rank,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }


def nemotron_fields(config: Any) -> dict[str, Any]:
    kinds = config.layers_block_type
    found = kv_heads(config, kinds) | {
        "feed_forward_length": [config.intermediate_size * (kind == "mlp") for kind in kinds],
        "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.state_size": config.ssm_state_size,
        "ssm.time_step_rank": config.mamba_num_heads,
        "ssm.group_count": config.n_groups,
    }
    if "moe" not in kinds:
        return found
    return found | {
        "feed_forward_length": [config.moe_intermediate_size * (kind == "moe") for kind in kinds],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_group_count": config.n_group,
    }


def linear_fields(config: Any) -> dict[str, Any]:
    found = {
        "full_attention_interval": 2,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }
    if getattr(config, "num_experts", None) is None:
        return found | {"rope.dimension_sections": [11, 11, 10, 0]}
    return found | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def kimi_fields(config: Any) -> dict[str, Any]:
    whole = config.qk_nope_head_dim + config.qk_rope_head_dim
    return kv_heads(config, config.layer_types) | {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "kda.head_dim": config.linear_head_dim,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": whole,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_group_used_count": 1,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_gating_func": 2,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
    }


FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "falcon-h1": scan_fields,
    "granitehybrid": granite_fields,
    "jamba": jamba_fields,
    "kimi-linear": kimi_fields,
    "mamba2": mamba2_fields,
    "nemotron_h": nemotron_fields,
    "nemotron_h_moe": nemotron_fields,
    "qwen35": linear_fields,
    "qwen35moe": linear_fields,
    "qwen3next": linear_fields,
}
