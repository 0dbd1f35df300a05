"""Mistral: Llama without biases, windows in all layers. Ministral 3: queries grow with the position beyond the length
that yarn stretches. Mixtral: Mistral with experts in place of the MLP.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..layers import Axis, LinearSpec, MoeSpec, StackedExperts
from ..rope import FARTHEST, Growth
from ..shapes import MoeShape
from ..values import Values
from .dense.llama import llama_layer
from .family import Family, same_windows
from .qwen_moe import MOST_EXPERTS

MISTRAL = Family(
    architectures=("MistralForCausalLM",),
    layer=llama_layer(),
    absent={"num_key_value_heads": 8, "sliding_window": 4096},
    windows=same_windows,
)


def stretched_growth(given: Values) -> dict[str, Any]:
    """`llama_4_scaling_beta` stands among the numbers of the rotation, and by how much queries grow."""
    rope = given.object("rope_scaling") or given.object("rope_parameters") or Values(given.file, {})
    beta = rope.real("llama_4_scaling_beta", 0, FARTHEST)
    if not beta:
        return {}
    floor = rope.real("original_max_position_embeddings", 1, FARTHEST)
    if floor is None:
        raise rope.wrong("original_max_position_embeddings", "the length beyond which queries grow,")
    return {"growth": Growth(beta, floor, first=0, turning=True)}


MINISTRAL3 = Family(
    architectures=("Ministral3ForCausalLM",),
    layer=llama_layer(),
    absent={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    windows=same_windows,
    more=stretched_growth,
)


def experts(given: Values, layers: int) -> MoeShape | None:
    """`intermediate_size` is that of one expert."""
    count = given.needed("num_local_experts", MOST_EXPERTS)
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.needed("num_experts_per_tok", count),
        intermediate_size=given.needed("intermediate_size"),
        layers=(True,) * layers,
        normalised=True,
    )


MIXTRAL = Family(
    architectures=("MixtralForCausalLM",),
    layer=msgspec.structs.replace(
        llama_layer(),
        moe=MoeSpec(
            router=LinearSpec("block_sparse_moe.gate", (Axis.EXPERTS,), Axis.HIDDEN),
            gate_up=(
                LinearSpec("block_sparse_moe.experts.{expert}.w1", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
                LinearSpec("block_sparse_moe.experts.{expert}.w3", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
            ),
            down=LinearSpec("block_sparse_moe.experts.{expert}.w2", (Axis.HIDDEN,), Axis.EXPERT_INTERMEDIATE),
            stacked=StackedExperts(
                gate_up="block_sparse_moe.experts.gate_up_proj", down="block_sparse_moe.experts.down_proj"
            ),
        ),
    ),
    absent={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    windows=same_windows,
    moe=experts,
)
