"""The fields of a header as converters write them, of the architectures in adapted.py."""

from __future__ import annotations

from typing import Any

from . import experts, gemma, states

EXPERTS_TOO = ("ernie4_5-moe", "glm4moe", "granitemoe", "lfm2moe", "minimax-m2")


def fields_of(architecture: str, config: Any) -> dict[str, Any]:
    """What converters write of a config."""
    if architecture in experts.ARCHITECTURES:
        return experts.fields_of(architecture, config, common_fields)
    if architecture in gemma.ARCHITECTURES:
        return gemma.fields_of(architecture, config, common_fields)
    if architecture in states.ARCHITECTURES:
        return states.fields_of(architecture, config, common_fields)
    if architecture == "mamba":
        return mamba_fields(config)
    if architecture in EXPERTS_TOO:
        return common_fields(architecture, config) | expert_fields(architecture, config)
    return common_fields(architecture, config)


def expert_fields(architecture: str, config: Any) -> dict[str, Any]:
    """Of models whose files say all of their experts."""
    if architecture == "granitemoe":
        shared = getattr(config, "shared_intermediate_size", None)
        return {
            "expert_count": config.num_local_experts,
            "expert_used_count": config.num_experts_per_tok,
            "attention.scale": float(config.attention_multiplier),
            "embedding_scale": float(config.embedding_multiplier),
            "residual_scale": float(config.residual_multiplier),
            "logit_scale": float(config.logits_scaling),
            **({"expert_shared_feed_forward_length": shared} if shared else {}),
        }
    if architecture == "ernie4_5-moe":
        return {
            "expert_count": config.moe_num_experts,
            "expert_used_count": config.moe_k,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_count": config.moe_num_shared_experts,
            "leading_dense_block_count": config.moe_layer_start_index,
            "interleave_moe_layer_step": config.moe_layer_interval,
        }
    if architecture == "lfm2moe":
        return {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_gating_func": 2,
            "leading_dense_block_count": config.num_dense_layers,
        }
    glm = architecture == "glm4moe"
    return {
        "expert_count": config.n_routed_experts if glm else config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size if glm else config.intermediate_size,
        "expert_gating_func": 2,
        **(glm4_fields(config) if glm else {}),
    }


def glm4_fields(config: Any) -> dict[str, Any]:
    """With a layer that drafts behind the others."""
    return {
        "block_count": config.num_hidden_layers + 1,
        "nextn_predict_layers": 1,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "leading_dense_block_count": config.first_k_dense_replace,
    }


def common_fields(architecture: str, config: Any) -> dict[str, Any]:
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or heads
    if architecture == "falcon" and not config.new_decoder_architecture:
        kv_heads = 1
    if architecture == "starcoder":
        kv_heads = 1
    wide = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    found: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", 512),
        "embedding_length": hidden,
        "feed_forward_length": getattr(config, "ffn_hidden_size", None) or wide,
        "block_count": config.num_hidden_layers,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }
    if head_dim * heads != hidden:
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    for name in ("layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon"):
        if getattr(config, name, None) is not None:
            found["attention.layer_norm_epsilon"] = float(getattr(config, name))
    if getattr(config, "rms_norm_eps", None) is not None:
        found["attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    rope = getattr(config, "rope_parameters", None)
    if rope and "rope_theta" in rope:
        found["rope.freq_base"] = float(rope["rope_theta"])
        found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1))
    return found | own_fields(architecture, config)


def lfm2_norms(architecture: str, config: Any) -> dict[str, Any]:
    """The size of its MLP follows from config.json, which says another; with experts it says its own."""
    size = {"feed_forward_length": 256} if architecture == "lfm2" else {}
    return {"attention.layer_norm_rms_epsilon": float(config.norm_eps), **size}


def mamba_fields(config: Any) -> dict[str, Any]:
    return {
        "context_length": 1 << 20,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.num_hidden_layers,
        "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.intermediate_size,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.time_step_rank,
        "ssm.dt_b_c_rms": config.model_type == "falcon_mamba",
    }


def own_fields(architecture: str, config: Any) -> dict[str, Any]:
    if architecture == "bloom":
        return {"attention.max_alibi_bias": 8.0}
    if architecture == "mpt":
        return {"attention.max_alibi_bias": 8.0, "feed_forward_length": 4 * config.hidden_size}
    if architecture == "exaone4":
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        return {"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": pattern}
    if architecture in ("lfm2", "lfm2moe"):
        kv_heads = [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types]
        return {
            "attention.head_count_kv": kv_heads,
            "shortconv.l_cache": config.conv_L_cache,
            **lfm2_norms(architecture, config),
        }
    if architecture in ("cohere2", "command-r"):
        window = {"attention.sliding_window": config.sliding_window} if architecture == "cohere2" else {}
        return {"logit_scale": float(config.logit_scale), **window}
    if architecture == "olmo":
        return {"attention.clamp_kqv": float(config.clip_qkv), "attention.layer_norm_epsilon": 1e-5}
    if architecture == "olmoe":
        return {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    if architecture in ("gptneox", "stablelm"):
        return {"use_parallel_residual": config.use_parallel_residual}
    return {}
