"""Latent attention in Mistral's own form (Mistral Large 3, Small 4): config.json's fields of what params.json tells."""

from __future__ import annotations

from typing import Any

from ..values import Values

LARGEST = 1 << 24
SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERTS = {  # beside their numbers, of which some have other names; what is so where nothing is said
    "n_shared_experts": ("num_shared_experts", 0),
    "first_k_dense_replace": ("first_k_dense_replace", 0),
    "n_group": ("num_expert_groups", 1),
    "topk_group": ("num_expert_groups_per_tok", 1),
}
KIND = {"architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "rope_interleave": True}


def is_latent(given: Values) -> bool:
    """Is attention over latents?"""
    return any(given[name] for name in SIZES)


def latent_parts(given: Values, text: dict[str, Any]) -> dict[str, Any]:
    """What its config.json has beside, or instead of, those fields that models with other attention have, too."""
    if text["sliding_window"] is not None:
        raise given.wrong("sliding_window", "none beside latents (kv_lora_rank)")
    sizes = {name: given.needed(name, LARGEST) for name in SIZES}
    turning, width = sizes["qk_rope_head_dim"], sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    rope = text["rope_parameters"] | {"partial_rotary_factor": turning / width}
    if rope["rope_type"] == "yarn" and "attention_factor" not in rope:
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}  # scores grow, and not what turns alone
    experts = _experts(given, text["num_hidden_layers"], text["intermediate_size"])
    return KIND | sizes | {"head_dim": width, "rope_parameters": rope} | experts


def _experts(given: Values, layers: int, width: int) -> dict[str, Any]:
    """Without any, all layers are those that have none."""
    moe = given.object("moe")
    if moe is None:
        none = {"n_routed_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": width}
        return none | {own: absent for own, (_, absent) in EXPERTS.items()} | {"first_k_dense_replace": layers}
    if moe["route_every_n"] not in (None, 1):
        raise moe.wrong("route_every_n", "1")
    count = moe.needed("num_experts", LARGEST)
    factor = moe.real("routed_scale", 0, 1e9)
    numbers = {own: moe.whole(name, 0, LARGEST) for own, (name, _) in EXPERTS.items()}
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": moe.needed("num_experts_per_tok", count),
        "moe_intermediate_size": moe.needed("expert_hidden_dim", LARGEST),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0 if factor is None else factor,
        **{own: EXPERTS[own][1] if number is None else number for own, number in numbers.items()},
    }
