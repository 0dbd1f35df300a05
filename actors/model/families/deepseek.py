"""DeepSeek V2 and V3 (R1, V3.1), and GLM-4.7-Flash, which is built as V3: latent attention, and experts of some groups
in all layers but the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from ..layers import Axis, LatentSpec, LayerSpec, LinearSpec, MoeSpec
from ..shapes import Groups, LatentShape, MoeShape, Scoring
from ..values import Unsupported, Values
from .dense.llama import llama_layer
from .family import Family
from .qwen_moe import EXPERTS, MOST_EXPERTS

LARGEST = 1 << 24  # of a size
FARTHEST = 1e9  # of a factor
MLPS = ("dense", "sparse")
LATENT_EPS = 1e-6  # of the norms of latents, whatever config.json says of the others
KV = {
    "kv_down": LinearSpec("self_attn.kv_a_proj_with_mqa", (Axis.LATENT_ENTRY,), Axis.HIDDEN, "attention_bias"),
    "kv_norm": "self_attn.kv_a_layernorm",
    "kv_up": LinearSpec("self_attn.kv_b_proj", (Axis.LATENT_HEADS,), Axis.LATENT),
}
OF_HIDDEN = LatentSpec(q_down=LinearSpec("self_attn.q_proj", (Axis.QUERIES,), Axis.HIDDEN), **KV)  # type: ignore[arg-type]
OF_LATENT = LatentSpec(
    q_down=LinearSpec("self_attn.q_a_proj", (Axis.Q_LATENT,), Axis.HIDDEN, "attention_bias"),
    q_norm="self_attn.q_a_layernorm",
    q_up=LinearSpec("self_attn.q_b_proj", (Axis.QUERIES,), Axis.Q_LATENT),
    **KV,  # type: ignore[arg-type]
)
SHARED: MoeSpec = msgspec.structs.replace(
    EXPERTS,
    exact_router=True,
    float32_scores=True,
    shared_gate_up=(
        LinearSpec("mlp.shared_experts.gate_proj", (Axis.SHARED_INTERMEDIATE,), Axis.HIDDEN),
        LinearSpec("mlp.shared_experts.up_proj", (Axis.SHARED_INTERMEDIATE,), Axis.HIDDEN),
    ),
    shared_down=LinearSpec("mlp.shared_experts.down_proj", (Axis.HIDDEN,), Axis.SHARED_INTERMEDIATE),
)
CORRECTED = msgspec.structs.replace(SHARED, correction="mlp.gate.e_score_correction_bias")


def latent_layer(moe: MoeSpec) -> LayerSpec:
    """As most models have it, with a latent for q."""
    return msgspec.structs.replace(
        llama_layer(),
        qkv=(),
        latent=OF_LATENT,
        out=LinearSpec("self_attn.o_proj", (Axis.HIDDEN,), Axis.ATTENDED, "attention_bias"),
        moe=moe,
    )


def latent(layer: LayerSpec) -> Callable[[Values], dict[str, Any]]:
    """What differs from other attention."""

    def more(given: Values) -> dict[str, Any]:
        check_field(given, "rope_interleave", (True,))
        check_field(given, "mlp_bias", (False,))
        rank = given.whole("q_lora_rank", 1, LARGEST)
        sizes = LatentShape(
            q_rank=rank,
            rank=given.needed("kv_lora_rank", LARGEST),
            plain=given.needed("qk_nope_head_dim", LARGEST),
            turning=given.needed("qk_rope_head_dim", LARGEST),
            value_dim=given.needed("v_head_dim", LARGEST),
            norm_eps=LATENT_EPS,
        )
        if sizes.turning % 2 or sizes.plain % 2:
            raise given.wrong("qk_rope_head_dim", "an even number, as qk_nope_head_dim must be,")
        own = layer if rank else msgspec.structs.replace(layer, latent=OF_HIDDEN)
        width = sizes.plain + sizes.turning
        return {
            "latent": sizes,
            "layer": own.with_biases(given.flag),
            "head_dim": width,
            "kv_heads": 1,
            "scale": width**-0.5 * _longer(given) ** 2,
            "beside": drafting_layers(given),
        }

    return more


def drafting_layers(given: Values) -> tuple[str, ...]:
    """What names begin with of layers behind the others, which draft."""
    layers, count = given.needed("num_hidden_layers"), given.whole("num_nextn_predict_layers", 0) or 0
    return tuple(f"model.layers.{layers + number}." for number in range(count))


def v2_experts(given: Values, layers: int) -> MoeShape | None:
    """A softmax of all scores."""
    method = given.text("topk_method") or "greedy"
    check_field(given, "scoring_func", ("softmax",))
    check_field(given, "topk_method", ("greedy", "group_limited_greedy"))
    check_field(given, "norm_topk_prob", (False,))
    groups = _groups(given, best=1) if method == "group_limited_greedy" else None
    return routed_experts(given, layers, Scoring.SOFTMAX, False, groups)


def v3_experts(given: Values, layers: int) -> MoeShape | None:
    """A sigmoid of each score, and where an expert is chosen a correction is added to it."""
    check_field(given, "scoring_func", ("sigmoid",))
    check_field(given, "topk_method", ("noaux_tc",))
    return routed_experts(given, layers, Scoring.SIGMOID, given.flag("norm_topk_prob"), _groups(given, best=2))


def listed_experts(given: Values, layers: int) -> MoeShape | None:
    """As of V3, in the layers that `mlp_layer_types` names, where it is there."""
    shape, kinds = v3_experts(given, layers), given["mlp_layer_types"]
    if shape is None or kinds is None:
        return shape
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in MLPS for kind in kinds):
        raise given.wrong("mlp_layer_types", f"a list of {layers} times {' or '.join(MLPS)}")
    return msgspec.structs.replace(shape, layers=tuple(kind == MLPS[1] for kind in kinds))


def routed_experts(given: Values, layers: int, scoring: Scoring, normalised: bool, groups: Groups | None) -> MoeShape:
    """As config.json has them."""
    check_field(given, "moe_layer_freq", (1,))
    count = given.needed("n_routed_experts", MOST_EXPERTS)
    if groups is not None and (count % groups.count or count // groups.count < groups.best):
        raise given.wrong("n_group", f"one that divides {count} experts into groups of {groups.best} or more")
    size = given.needed("moe_intermediate_size", LARGEST)
    first = given.whole("first_k_dense_replace", 0) or 0
    factor = given.real("routed_scaling_factor", 0, FARTHEST)
    reach = count if groups is None else count // groups.count * groups.kept
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.needed("num_experts_per_tok", reach),
        intermediate_size=size,
        layers=tuple(layer >= first for layer in range(layers)),
        scoring=scoring,
        normalised=normalised,
        factor=1.0 if factor is None else factor,
        shared_intermediate_size=size * (given.whole("n_shared_experts", 0, MOST_EXPERTS) or 0),
        groups=groups,
    )


def _groups(given: Values, best: int) -> Groups:
    count = given.needed("n_group", MOST_EXPERTS)
    return Groups(count=count, kept=given.needed("topk_group", count), best=best)


def _longer(given: Values) -> float:
    """By how much queries and keys are longer each, where positions are stretched."""
    rope = given.object("rope_scaling") or given.object("rope_parameters")
    if rope is None or (rope.text("rope_type") or rope.text("type") or "default") == "default":
        return 1.0
    by, factor = rope.real("mscale_all_dim", 0, FARTHEST), rope.real("factor", 0, FARTHEST)
    return 0.1 * by * math.log(factor) + 1.0 if by and factor and factor > 1 else 1.0


def check_field(given: Values, field: str, known: tuple[object, ...]) -> None:
    """The layers of this server have those values of a field alone; where it is missing, the first one holds."""
    if given[field] is not None and given[field] not in known:
        told = " and ".join(str(value) for value in known)
        raise Unsupported(f"model: {field} = {given[field]!r} is not supported, only {told} ({given.file})")


V2_LAYER, V3_LAYER = latent_layer(SHARED), latent_layer(CORRECTED)
DEEPSEEK_V2 = Family(
    architectures=("DeepseekV2ForCausalLM",),
    layer=V2_LAYER,
    absent={
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
    },
    moe=v2_experts,
    interleaved=True,
    more=latent(V2_LAYER),
)
DEEPSEEK_V3 = Family(
    architectures=("DeepseekV3ForCausalLM",),
    layer=V3_LAYER,
    absent={
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
    },
    moe=v3_experts,
    interleaved=True,
    more=latent(V3_LAYER),
)
GLM4_MOE_LITE = Family(
    architectures=("Glm4MoeLiteForCausalLM",),
    layer=V3_LAYER,
    absent={
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 512,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "num_nextn_predict_layers": 1,
    },
    moe=listed_experts,
    interleaved=True,
    more=latent(V3_LAYER),
)
