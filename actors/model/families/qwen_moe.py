"""Qwen3-MoE: Qwen3 with experts in place of the MLP, in all layers or in some."""

from __future__ import annotations

import msgspec

from ..layers import Axis, LinearSpec, MoeSpec
from ..moe import MoeShape
from ..values import Values
from .family import Family, Windows, no_windows, same_windows
from .llama import llama_layer

MOST_EXPERTS = 1 << 16

EXPERTS = MoeSpec(
    router=LinearSpec("mlp.gate", (Axis.EXPERTS,), Axis.HIDDEN),
    gate_up=(
        LinearSpec("mlp.experts.{expert}.gate_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
        LinearSpec("mlp.experts.{expert}.up_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
    ),
    down=LinearSpec("mlp.experts.{expert}.down_proj", (Axis.HIDDEN,), Axis.EXPERT_INTERMEDIATE),
)


def sparse_layers(given: Values, layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`."""
    step, dense = given.whole("decoder_sparse_step") or 1, given["mlp_only_layers"]
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise given.wrong("mlp_only_layers", "a list of numbers of layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def switched_everywhere(given: Values, layers: int) -> Windows:
    """With `use_sliding_window`, in all layers."""
    return (same_windows if given.flag("use_sliding_window") else no_windows)(given, layers)


def experts(given: Values, layers: int) -> MoeShape | None:
    """As config.json has them, by one of two names."""
    count = given.whole("num_experts", 1, MOST_EXPERTS) or given.whole("num_local_experts", 1, MOST_EXPERTS) or 128
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.whole("num_experts_per_tok", 1, count) or min(8, count),
        intermediate_size=given.needed("moe_intermediate_size"),
        layers=sparse_layers(given, layers),
        normalised=given.flag("norm_topk_prob"),
    )


QWEN3_MOE = Family(
    architectures=("Qwen3MoeForCausalLM",),
    layer=msgspec.structs.replace(
        llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True), moe=EXPERTS
    ),
    absent={"num_key_value_heads": 4, "sliding_window": 4096, "moe_intermediate_size": 768},
    windows=switched_everywhere,
    moe=experts,
)
