"""Mistral: Llama without biases, windows in all layers. Mixtral: the same with experts in place of the MLP."""

from __future__ import annotations

import msgspec

from ..layers import Axis, LinearSpec, MoeSpec, StackedExperts
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
    absent={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
    windows=same_windows,
    moe=experts,
)
