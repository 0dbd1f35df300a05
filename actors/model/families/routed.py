"""GLM-4.5 to 4.7 and Ling 2.0 (and Ring, Ling 1.5): DeepSeek's experts behind attention of heads that may be normed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..layers import EMBEDDINGS, Axis, LayerSpec, LinearSpec, MoeSpec
from ..shapes import MoeShape, Scoring
from ..values import Values
from .deepseek import CORRECTED, SHARED, check_field, drafting_layers, routed_experts, v3_experts
from .dense.llama import llama_layer
from .family import Family

QK_NORM = "use_qk_norm"
APART = "qkv_apart"  # GGUF files have queries, keys and values so, in Llama's names


def _changes(layer: LayerSpec, apart: LayerSpec | None = None) -> Callable[[Values], dict[str, Any]]:
    """Without norms of heads where config.json has none; `apart` is the layer of files that say APART."""

    def more(given: Values) -> dict[str, Any]:
        own = apart if apart is not None and given.flag(APART) else layer
        own = own if given.flag(QK_NORM) else msgspec.structs.replace(own, q_norm=None, k_norm=None)
        return {"layer": own.with_biases(given.flag), "beside": drafting_layers(given)}

    return more


GLM_LAYER = msgspec.structs.replace(llama_layer(qkv_bias="attention_bias", qk_norm=True), moe=CORRECTED)
GLM4_MOE = Family(
    architectures=("Glm4MoeForCausalLM",),
    layer=GLM_LAYER,
    absent={
        "head_dim": None,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
    },
    partial_rotary=True,
    moe=v3_experts,
    more=_changes(GLM_LAYER),
)


def _bailing_layer(moe: MoeSpec) -> LayerSpec:
    return msgspec.structs.replace(
        llama_layer(mlp_bias="use_bias"),
        qkv=(
            LinearSpec(
                "attention.query_key_value", (Axis.QUERIES, Axis.KEYS, Axis.VALUES), Axis.HIDDEN, "use_qkv_bias"
            ),
        ),
        q_norm="attention.query_layernorm",
        k_norm="attention.key_layernorm",
        out=LinearSpec("attention.dense", (Axis.HIDDEN,), Axis.QUERIES, "use_bias"),
        moe=moe,
    )


def _bailing_experts(given: Values, layers: int) -> MoeShape | None:
    """By their names; the older router takes a softmax of all scores, and knows no groups."""
    own = {"n_routed_experts": given["num_experts"], "n_shared_experts": given["num_shared_experts"]}
    named = Values(given.file, {**given.values, **own})
    check_field(named, "norm_head", (False,))
    check_field(named, "norm_softmax", (False,))
    check_field(named, "use_bias", (False,))
    if given["n_group"] is None:
        return routed_experts(named, layers, Scoring.SOFTMAX, given.flag("norm_topk_prob"), None)
    check_field(named, "score_function", ("sigmoid",))
    check_field(named, "moe_router_enable_expert_bias", (True,))
    return v3_experts(named, layers)


ROUNDED = msgspec.structs.replace(SHARED, float32_scores=False)  # as the older router has its scores
SCORED, CORRECTED_LING = (
    _bailing_layer(ROUNDED),
    _bailing_layer(msgspec.structs.replace(SHARED, correction="mlp.gate.expert_bias")),
)
SCORED_APART = msgspec.structs.replace(llama_layer(qkv_bias="use_qkv_bias"), moe=ROUNDED)
NAMES = (("model.word_embeddings.", f"{EMBEDDINGS}."),)
BAILING = Family(
    architectures=("BailingMoeForCausalLM",),
    layer=SCORED,
    absent={QK_NORM: False, "first_k_dense_replace": 0, "n_group": None},
    names=NAMES,
    moe=_bailing_experts,
    more=_changes(SCORED, SCORED_APART),
)
BAILING_V2 = Family(
    architectures=("BailingMoeV2ForCausalLM",),
    layer=CORRECTED_LING,
    absent={QK_NORM: True, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "partial_rotary_factor": 0.5},
    names=NAMES,
    partial_rotary=True,
    moe=_bailing_experts,
    more=_changes(CORRECTED_LING),
)
