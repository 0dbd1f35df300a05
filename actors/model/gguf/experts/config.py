"""config.json of GGUF files of models with experts, and of MiniCPM 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..architectures import SOFTMAX, Fields, chosen_experts, granite_factors, layer_types
from ..header import GgufHeader
from ..sparse import SIGMOID, routed_experts, scored_by_sigmoid, scores_by, without_drafting

Config = dict[str, Any]


def _dbrx(fields: Fields, header: GgufHeader) -> Config:
    """Shares of a token's experts add up to 1."""
    chosen = chosen_experts(fields, normalised=True)
    epsilon = "attention.layer_norm_epsilon"
    if f"{fields.real(fields.own(epsilon), 0, 1) or 1e-5:.6g}" != "1e-05":
        raise fields.wrong_own(epsilon, "1e-5")
    theta = fields.factor("rope.freq_base") or 10_000.0
    clip = fields.factor("attention.clamp_kqv")
    return {
        "attn_config": {"kv_n_heads": fields.kv_heads(), "clip_qkv": clip, "rope_theta": theta},
        "ffn_config": {
            "ffn_hidden_size": fields.counted("feed_forward_length"),
            "moe_num_experts": chosen["num_experts"],
            "moe_top_k": chosen["num_experts_per_tok"],
            "moe_normalize_expert_weights": 1.0,
        },
    }


def _dots1(fields: Fields, header: GgufHeader) -> Config:
    scored_by_sigmoid(fields)
    return routed_experts(fields) | {"hidden_act": "silu", "attention_bias": False, "sliding_window": None}


def _exaone_moe(fields: Fields, header: GgufHeader) -> Config:
    """Each fourth layer sees all, and does not turn; behind all layers may stand some that draft."""
    scored_by_sigmoid(fields)
    layers = without_drafting(fields)
    found = routed_experts(fields)
    dense = found.pop("first_k_dense_replace")
    window = fields.count("attention.sliding_window")
    return {
        **{name: found[name] for name in ("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")},
        **{name: found[name] for name in ("routed_scaling_factor", "n_group", "topk_group")},
        "num_hidden_layers": layers,
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "first_k_dense_replace": dense,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "sliding_window": window,
        "layer_types": layer_types(fields, 1 if window is None else 4)[:layers],
        "hidden_act": "silu",
    }


def _hunyuan_moe(fields: Fields, header: GgufHeader) -> Config:
    """Experts, and the MLP that all tokens have, are of one size. The base by which positions turn is stretched."""
    chosen = chosen_experts(fields, normalised=True)
    size = fields.counted("feed_forward_length")
    for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        if fields.count(name) not in (None, size):
            raise fields.wrong_own(name, f"as much as feed_forward_length, {size},")
    if (fields.count("expert_shared_count") or 1) != 1:
        raise fields.wrong_own("expert_shared_count", "1")
    return {
        "num_experts": chosen["num_experts"],
        "moe_topk": chosen["num_experts_per_tok"],
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _minicpm3(fields: Fields, header: GgufHeader) -> Config:
    """Files do not say what embeddings, layers and logits are multiplied by: the one model that there is has it so."""
    width, turning = fields.head_dim(), fields.counted("rope.dimension_count")
    if turning >= width:
        raise fields.wrong_own("rope.dimension_count", f"less than the width of a head, {width},")
    values = fields.count("attention.value_length")
    return {
        "q_lora_rank": fields.counted("attention.q_lora_rank"),
        "kv_lora_rank": fields.counted("attention.kv_lora_rank"),
        "qk_nope_head_dim": width - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": values or fields.counted("embedding_length") // fields.heads(),
        "head_dim": turning,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _phimoe(fields: Fields, header: GgufHeader) -> Config:
    chosen = chosen_experts(fields, normalised=True)
    return {
        "num_local_experts": chosen["num_experts"],
        "num_experts_per_tok": chosen["num_experts_per_tok"],
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "lm_head_bias": "output.bias" in header.tensors,
        "sliding_window": fields.count("attention.sliding_window"),
        "hidden_act": "silu",
    }


def _ernie_moe(fields: Fields, header: GgufHeader) -> Config:
    """Shares of a token's experts add up to 1; behind the first layers all have experts."""
    scores_by(fields, (SOFTMAX,))
    if fields.whole(fields.own("interleave_moe_layer_step"), 0, 1) == 0:
        raise fields.wrong_own("interleave_moe_layer_step", "1")
    found = routed_experts(fields)
    return {
        "moe_num_experts": found["n_routed_experts"],
        "moe_k": found["num_experts_per_tok"],
        "moe_num_shared_experts": found["n_shared_experts"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "moe_layer_start_index": found["first_k_dense_replace"],
        "moe_layer_end_index": fields.counted("block_count") - 1,
        "moe_layer_interval": 1,
        "use_bias": False,
        "hidden_act": "silu",
    }


def _glm4_moe(fields: Fields, header: GgufHeader) -> Config:
    scores_by(fields, (SIGMOID,))
    return routed_experts(fields) | {
        "num_hidden_layers": without_drafting(fields),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "hidden_act": "silu",
    }


def _bailing(fields: Fields, header: GgufHeader) -> Config:
    """Of files whose logits were normed rows of weights are such already."""
    scores_by(fields, (SOFTMAX,))
    found = routed_experts(fields)
    if found["n_group"] != 1 or found["routed_scaling_factor"] != 1.0:
        raise fields.wrong_own("expert_weights_scale", "1, without groups of experts,")
    return {
        **{name: found[name] for name in ("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")},
        "first_k_dense_replace": found["first_k_dense_replace"],
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "use_qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "qkv_apart": True,
        "hidden_act": "silu",
    }


def _bailing2(fields: Fields, header: GgufHeader) -> Config:
    scores_by(fields, (SIGMOID,))
    found = routed_experts(fields)
    return found | {
        "num_hidden_layers": without_drafting(fields),
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
        "use_qkv_bias": "blk.0.attn_qkv.bias" in header.tensors,
        "hidden_act": "silu",
    }


def _granite_moe(fields: Fields, header: GgufHeader) -> Config:
    """With an MLP for all tokens beside the experts, or without."""
    chosen = chosen_experts(fields, normalised=True)
    shared = fields.count("expert_shared_feed_forward_length")
    kind = (
        {} if shared is None else {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    )
    return {
        **kind,
        **({} if shared is None else {"shared_intermediate_size": shared}),
        **granite_factors(fields),
        "num_local_experts": chosen["num_experts"],
        "num_experts_per_tok": chosen["num_experts_per_tok"],
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _minimax_m2(fields: Fields, header: GgufHeader) -> Config:
    """All layers have experts; shares of a token's add up to 1."""
    scores_by(fields, (SIGMOID,))
    found = routed_experts(fields)
    if found["routed_scaling_factor"] != 1.0 or found["n_group"] != 1:
        raise fields.wrong_own("expert_weights_scale", "1, without groups of experts,")
    return {
        "num_local_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "intermediate_size": found["moe_intermediate_size"],
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "hidden_act": "silu",
    }


def _olmoe(fields: Fields, header: GgufHeader) -> Config:
    chosen = chosen_experts(fields, normalised=False)
    return {**chosen, "norm_topk_prob": False, "intermediate_size": fields.counted("feed_forward_length")}


ROUTED = ("expert_count", "expert_group_used_count", "leading_dense_block_count")
GRANITE = ("logit_scale", "residual_scale", "embedding_scale")
OWN: dict[str, tuple[Callable[[Fields, GgufHeader], Config], tuple[str, ...]]] = {
    "bailingmoe": (_bailing, ROUTED),
    "bailingmoe2": (_bailing2, (*ROUTED, "nextn_predict_layers")),
    "dbrx": (_dbrx, ("expert_count", "attention.clamp_kqv")),
    "dots1": (_dots1, ROUTED),
    "ernie4_5-moe": (_ernie_moe, (*ROUTED, "interleave_moe_layer_step")),
    "glm4moe": (_glm4_moe, (*ROUTED, "nextn_predict_layers")),
    "granitemoe": (_granite_moe, ("expert_count", "attention.scale", *GRANITE)),
    "minimax-m2": (_minimax_m2, ROUTED),
    "olmoe": (_olmoe, ("expert_count",)),
    "exaone-moe": (_exaone_moe, (*ROUTED, "attention.sliding_window", "nextn_predict_layers")),
    "hunyuan-moe": (_hunyuan_moe, ("expert_count",)),
    "minicpm3": (_minicpm3, ()),
    "phimoe": (_phimoe, ("expert_count", "attention.sliding_window")),
}
