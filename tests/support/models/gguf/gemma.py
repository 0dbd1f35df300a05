"""GGUF files of Gemma 3n and Gemma 4, as llama.cpp's converter writes them: names and fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np

from .formats import Array

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3n": ("gemma3n", "gemma3n_text", {"intermediate_size": 96}),
    "gemma4": (
        *("gemma4", "gemma4_text"),
        {
            **{"num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
            **{"layer_types": [SLIDING, SLIDING, FULL] * 2, "final_logit_softcapping": 20.0},
        },
    ),
    "gemma4_moe": (
        *("gemma4", "gemma4_text"),
        {
            **{"num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "hidden_size_per_layer_input": 0},
            **{"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64},
            **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        },
    ),
}
ARCHITECTURES = ("gemma3n", "gemma4")
NAMES = (
    (r"model\.embed_tokens_per_layer", "per_layer_token_embd"),
    (r"model\.per_layer_model_projection", "per_layer_model_proj"),
    (r"model\.per_layer_projection_norm", "per_layer_proj_norm"),
)
INSIDE = (
    (r"per_layer_input_gate", "inp_gate"),
    (r"per_layer_projection", "proj"),
    (r"post_per_layer_input_norm", "post_norm"),
    (r"pre_feedforward_layernorm", "ffn_norm"),
    (r"pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    (r"post_feedforward_layernorm_([12])", r"post_ffw_norm_\1"),
    (r"router\.proj", "ffn_gate_inp"),
    (r"altup\.correction_coefs", "altup_correct_coef"),
    (r"altup\.prediction_coefs", "altup_predict_coef"),
    (r"altup\.modality_router", "altup_router"),
    (r"altup\.router_norm", "altup_router_norm"),
    (r"laurel\.linear_(l|r)\w+", r"laurel_\1"),
    (r"laurel\.post_laurel_norm", "laurel_post_norm"),
)
WHOLE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "altup.correct_output_scale": "altup_correct_scale.weight",
}
STACKED = re.compile(r"model\.altup_(unembed_)?projections\.(\d)\.weight")


def file_name(name: str) -> str | None:
    """Of what has a name of its own."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    own = WHOLE.get(match[2]) if match else None
    return f"blk.{match[1]}.{own}" if match and own else None


def stacked_name(name: str) -> tuple[str, int] | None:
    """Of tensors that stand in one: its name, and which it is."""
    match = STACKED.fullmatch(name)
    return None if match is None else (f"altup_{'unembd_' if match[1] else ''}proj.weight", int(match[2]))


def of_layer(config: Any, layer: int, name: str) -> int:
    """What a layer has otherwise than the rest, or what all have."""
    fields = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    own = {int(at): one for at, one in (fields.get("per_layer_config") or {}).items()}
    return int(own.get(layer, {}).get(name) or fields[name])


def widened(config: Any) -> Any:
    """With wider heads where layers see all, as all of Gemma 4 has, and fewer where keys are values."""
    fields = config.to_dict()
    own = {"head_dim": 2 * config.head_dim} | ({"num_key_value_heads": 1} if config.attention_k_eq_v else {})
    layers = [at for at, kind in enumerate(config.layer_types) if kind == FULL]
    return type(config).from_dict(fields | {"per_layer_config": dict.fromkeys(layers, own)})


def make_scalars(model: Any) -> None:
    """What layers are multiplied by is no weight, and 1 in a model that is made."""
    for layer in model.model.layers:
        layer.layer_scalar.fill_(0.85)


def fields_of(architecture: str, config: Any, common: Callable[[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """What converters write of a config."""
    config = SimpleNamespace(**config.to_dict())
    found = common(architecture, config) | {
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in config.layer_types],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "rope.freq_base": float(config.rope_parameters[FULL]["rope_theta"]),
        "rope.freq_base_swa": float(config.rope_parameters[SLIDING]["rope_theta"]),
    }
    return found | (gemma3n_fields(config) if architecture == "gemma3n" else gemma4_fields(config))


def gemma3n_fields(config: Any) -> dict[str, Any]:
    scales = [NormalDist().inv_cdf(part) if part else float("-inf") for part in config.activation_sparsity_pattern]
    return {
        "activation_sparsity_scale": scales,
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "feed_forward_length": list(config.intermediate_size),
    }


def gemma4_fields(config: Any) -> dict[str, Any]:
    layers = config.num_hidden_layers
    full = config.layer_types.index(FULL)
    wide = of_layer(config, full, "head_dim")
    heads = of_layer(config, full, "num_key_value_heads")
    first = layers - config.num_kv_shared_layers
    double = config.use_double_wide_mlp
    found: dict[str, Any] = {
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == SLIDING else heads for kind in config.layer_types
        ],
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": config.head_dim,
        "feed_forward_length": [config.intermediate_size * (1 + (double and at >= first)) for at in range(layers)],
    }
    if config.final_logit_softcapping:
        found["final_logit_softcapping"] = float(config.final_logit_softcapping)
    if config.enable_moe_block:
        found["expert_count"], found["expert_used_count"] = config.num_experts, config.top_k_experts
        found["expert_feed_forward_length"] = config.moe_intermediate_size
    return found


def rope_factors(config: Any) -> Array:
    """Of layers that see all: 1 for what turns, and so much for the rest that it stays."""
    full = config.layer_types.index(FULL)
    pairs = of_layer(config, full, "head_dim") // 2
    turning = int(pairs * config.rope_parameters[FULL]["partial_rotary_factor"])
    return np.array([1.0] * turning + [1e30] * (pairs - turning))
