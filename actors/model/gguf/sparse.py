"""config.json of GGUF files of gpt-oss, of Llama 4, and of DeepSeek V2 to V3.2 with all that are built as these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .architectures import LARGEST, SOFTMAX, Fields, Rule, chosen_experts, layer_types
from .header import GgufHeader

SIGMOID = 2  # of expert_gating_func
SCORINGS = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}
ONLY_GROUPS = {160: (8, 3), 256: (8, 4)}  # of files that lack them: DeepSeek V2 and V3 alone have so many experts
LLAMA4_CHUNK = 8192
UNNORMED_EXPERTS = 128  # of Llama 4 Maverick
MISTRAL4_GROWTH = 0.1  # of queries, in each model that was published, whether its file says it or not
SHARED_FROM = 1 << 20  # tokens of context: GLM-5.2, older files of which do not say which layers choose
PER_SCALE = 10.0  # the field is a tenth of what config.json has


def _gpt_oss(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Every second layer has windows, from the first on; positions are stretched without rounding."""
    chosen = chosen_experts(fields, normalised=True)
    size = fields.count("expert_feed_forward_length") or fields.same("feed_forward_length")
    return {
        "model_type": "gpt_oss",
        "num_local_experts": chosen["num_experts"],
        "num_experts_per_tok": chosen["num_experts_per_tok"],
        "intermediate_size": size,
        "sliding_window": fields.counted("attention.sliding_window"),
        "layer_types": layer_types(fields, 2),
    }


def _llama4(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Files say nothing of what both of its models have, nor that only the one of 128 experts norms no heads."""
    scored_by_sigmoid(fields)
    if fields.whole(fields.own("attention.sliding_window"), 0, LARGEST) not in (None, LLAMA4_CHUNK):
        raise fields.wrong_own("attention.sliding_window", f"{LLAMA4_CHUNK}")
    experts = fields.counted("expert_count")
    return {
        "model_type": "llama4_text",
        "num_local_experts": experts,
        "num_experts_per_tok": fields.counted("expert_used_count"),
        "intermediate_size": fields.counted("expert_feed_forward_length"),
        "intermediate_size_mlp": fields.same("feed_forward_length"),
        "interleave_moe_layer_step": fields.count("interleave_moe_layer_step") or 1,
        "use_qk_norm": experts != UNNORMED_EXPERTS,
        "attention_chunk_size": LLAMA4_CHUNK,
        "no_rope_layer_interval": 4,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }


def _deepseek(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Whether it is V2 or V3 is told by how its router scores: where files do not say it (GLM-4.7-Flash), V3 alone
    has what corrects scores."""
    corrects = any(name.endswith(".exp_probs_b.bias") for name in header.tensors)
    scoring = scores_by(fields, absent=SIGMOID if corrects else SOFTMAX)
    found = latent_sizes(fields) | routed_experts(fields) | {"num_hidden_layers": without_drafting(fields)}
    if scoring == SIGMOID:
        kind = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
        return found | kind | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    kind = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    method = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return found | kind | {"scoring_func": "softmax", "topk_method": method}


def _indexed(model_type: str) -> Callable[[Fields, GgufHeader], dict[str, Any]]:
    """DeepSeek V3.2, and GLM-5, which is built so."""

    def more(fields: Fields, header: GgufHeader) -> dict[str, Any]:
        scored_by_sigmoid(fields)
        return {
            **latent_sizes(fields),
            **routed_experts(fields),
            "num_hidden_layers": without_drafting(fields),
            "model_type": model_type,
            "index_topk": fields.counted("attention.indexer.top_k"),
            "index_n_heads": fields.counted("attention.indexer.head_count"),
            "index_head_dim": fields.counted("attention.indexer.key_length"),
            **choosing(fields),
        }

    return more


def choosing(fields: Fields) -> dict[str, Any]:
    """Which layers choose what is seen, and which see what the one before them has chosen."""
    kinds = fields[fields.own("attention.indexer.types")]
    if isinstance(kinds, list) and all(kind in (0, 1) for kind in kinds):
        return {"indexer_types": ["full" if kind else "shared" for kind in kinds]}
    if kinds is not None:
        raise fields.wrong_own("attention.indexer.types", "for each layer true or false")
    is_shared = fields.architecture == "glm-dsa" and fields.counted("context_length") >= SHARED_FROM
    return {"index_topk_freq": 4, "index_skip_topk_offset": 3} if is_shared else {}


def _mistral4(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    scores_by(fields, (SOFTMAX,))
    return latent_sizes(fields) | routed_experts(fields) | {"num_hidden_layers": without_drafting(fields)}


def without_drafting(fields: Fields) -> int:
    """How many layers there are: behind all may stand some that draft, which files count with them."""
    drafting = fields.count("nextn_predict_layers") or 0
    layers = fields.counted("block_count") - drafting
    if layers < 1:
        raise fields.wrong_own("nextn_predict_layers", f"less than how many layers there are, {layers + drafting},")
    return layers


def scores_by(fields: Fields, known: tuple[int, ...] = (SOFTMAX, SIGMOID), absent: int = SOFTMAX) -> int:
    """How a router scores, which must be one of these; `absent` where the file does not say."""
    scoring = fields.whole(fields.own("expert_gating_func"), 0, LARGEST) or absent
    if scoring not in known:
        raise fields.wrong_own("expert_gating_func", " or ".join(f"{one} ({SCORINGS[one]})" for one in known))
    return scoring


def scored_by_sigmoid(fields: Fields) -> None:
    """Of models whose router scores so in any case, whether their files say it or not."""
    if fields.whole(fields.own("expert_gating_func"), 0, LARGEST) not in (None, 0, SIGMOID):
        raise fields.wrong_own("expert_gating_func", f"{SIGMOID} ({SCORINGS[SIGMOID]})")


def latent_sizes(fields: Fields) -> dict[str, Any]:
    """Sizes of attention. Newer files have those of what is kept as well, as if all heads had one key."""
    width, turning = fields.head_dim(), fields.counted("rope.dimension_count")
    if turning >= width:
        raise fields.wrong_own("rope.dimension_count", f"less than the width of a head, {width},")
    values = fields.count("attention.value_length_mla") or fields.counted("attention.value_length")
    return {
        "q_lora_rank": fields.count("attention.q_lora_rank"),
        "kv_lora_rank": fields.counted("attention.kv_lora_rank"),
        "qk_nope_head_dim": width - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": values,
        "head_dim": turning,
    }


def routed_experts(fields: Fields) -> dict[str, Any]:
    """As DeepSeek's config.json has them."""
    count, used = fields.counted("expert_count"), fields.counted("expert_used_count")
    groups, kept = fields.count("expert_group_count"), fields.count("expert_group_used_count")
    if groups is None:
        groups, kept = ONLY_GROUPS.get(count, (1, 1))
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": used,
        "n_shared_experts": fields.count("expert_shared_count") or 0,
        "moe_intermediate_size": fields.counted("expert_feed_forward_length"),
        "first_k_dense_replace": fields.count("leading_dense_block_count") or 0,
        "norm_topk_prob": fields.flag(fields.own("expert_weights_norm")),
        "routed_scaling_factor": fields.factor("expert_weights_scale") or 1.0,
        "n_group": groups,
        "topk_group": kept or groups,
        "num_nextn_predict_layers": 0,
    }


def stretched(fields: Fields) -> dict[str, Any]:
    """What yarn has beside what all have. Scores of DeepSeek grow with its factor, and queries and keys do not: as in
    all models of it that were published."""
    if fields.architecture == "gpt-oss":
        return {"truncate": False}
    by = fields.factor("rope.scaling.yarn_log_multiplier")
    if by is None:
        return {}
    longer = float(f"{by * PER_SCALE:.6g}")  # of float32
    found = {"mscale": longer, "mscale_all_dim": longer}
    if fields.architecture == "mistral4":
        growth = fields.factor("attention.temperature_scale") or MISTRAL4_GROWTH
        found["llama_4_scaling_beta"] = float(f"{growth:.6g}")
    return found


OF_LATENT = (
    "expert_count",
    "expert_group_used_count",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.scaling.yarn_log_multiplier",
)
RULES = {
    "llama4": Rule(_llama4, ("expert_count", "interleave_moe_layer_step", "attention.sliding_window")),
    "gpt-oss": Rule(_gpt_oss, ("expert_count", "attention.sliding_window")),
    "deepseek2": Rule(_deepseek, OF_LATENT),
    "deepseek32": Rule(_indexed("deepseek_v32"), OF_LATENT),
    "glm-dsa": Rule(_indexed("glm_moe_dsa"), OF_LATENT),
    "mistral4": Rule(_mistral4, (*OF_LATENT, "attention.temperature_scale")),
}
