"""Qwen2-MoE and Qwen3-MoE: experts in place of the MLP; the older has an MLP for all tokens beside them."""

from __future__ import annotations

from typing import Any

import msgspec

from ..layers import Axis, LinearSpec, MoeSpec, StackedExperts
from ..shapes import MoeShape
from ..values import Values
from .dense.llama import llama_layer
from .dense.qwen import FIRST_WINDOW, switched_windows
from .family import Family, Windows, no_windows, same_windows

MOST_EXPERTS = 1 << 16
TRANSPOSED = "experts_transposed"  # what is said of a text part, and in no config.json

EXPERTS = MoeSpec(
    router=LinearSpec("mlp.gate", (Axis.EXPERTS,), Axis.HIDDEN),
    gate_up=(
        LinearSpec("mlp.experts.{expert}.gate_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
        LinearSpec("mlp.experts.{expert}.up_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN),
    ),
    down=LinearSpec("mlp.experts.{expert}.down_proj", (Axis.HIDDEN,), Axis.EXPERT_INTERMEDIATE),
    stacked=StackedExperts(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),
)


def sparse_layers(given: Values, layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`."""
    step, dense = given.whole("decoder_sparse_step") or 1, given["mlp_only_layers"]
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise given.wrong("mlp_only_layers", "a list of numbers of layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


SHARED = msgspec.structs.replace(
    EXPERTS,
    shared_gate_up=(
        LinearSpec("mlp.shared_expert.gate_proj", (Axis.SHARED_INTERMEDIATE,), Axis.HIDDEN),
        LinearSpec("mlp.shared_expert.up_proj", (Axis.SHARED_INTERMEDIATE,), Axis.HIDDEN),
    ),
    shared_down=LinearSpec("mlp.shared_expert.down_proj", (Axis.HIDDEN,), Axis.SHARED_INTERMEDIATE),
    shared_gate=LinearSpec("mlp.shared_expert_gate", (Axis.ONE,), Axis.HIDDEN),
)


def alternating_windows(given: Values, layers: int) -> Windows:
    """With `use_sliding_window`, in the layers that `layer_types` names, or in every second one before
    `max_window_layers`, from the first on.
    """
    if given["layer_types"] is not None or not given.flag("use_sliding_window"):
        return switched_windows(given, layers)
    window, most = given.whole("sliding_window"), given.whole("max_window_layers", 0)
    end = FIRST_WINDOW if most is None else most
    return tuple(window if layer % 2 == 0 and layer < end else None for layer in range(layers))


def switched_everywhere(given: Values, layers: int) -> Windows:
    """With `use_sliding_window`, in all layers."""
    return (same_windows if given.flag("use_sliding_window") else no_windows)(given, layers)


def experts(given: Values, layers: int) -> MoeShape | None:
    """As config.json has them, by one of two names."""
    count = given.whole("num_experts", 1, MOST_EXPERTS) or given.needed("num_local_experts", MOST_EXPERTS)
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.needed("num_experts_per_tok", count),
        intermediate_size=given.needed("moe_intermediate_size"),
        layers=sparse_layers(given, layers),
        normalised=given.flag("norm_topk_prob"),
        shared_intermediate_size=given.whole("shared_expert_intermediate_size", 0) or 0,
    )


def seeing_experts(given: Values) -> dict[str, Any]:
    """Checkpoints of Qwen3-VL have the weights of all experts in one tensor, with columns before rows as they were
    published; transformers writes both."""
    if not given.flag(TRANSPOSED):
        return {}
    stacked = StackedExperts(
        gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", transposed=True, either=True, usual=True
    )
    layer = msgspec.structs.replace(QWEN3_LAYER, moe=msgspec.structs.replace(EXPERTS, stacked=stacked))
    return {"layer": layer.with_biases(given.flag)}


QWEN2_MOE = Family(
    architectures=("Qwen2MoeForCausalLM",),
    layer=msgspec.structs.replace(llama_layer(qkv_bias="qkv_bias"), moe=SHARED),
    absent={
        "num_key_value_heads": 16,
        "sliding_window": 4096,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "qkv_bias": True,
    },
    windows=alternating_windows,
    moe=experts,
)
QWEN3_LAYER = msgspec.structs.replace(
    llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True), moe=EXPERTS
)
QWEN3_MOE = Family(
    architectures=("Qwen3MoeForCausalLM",),
    layer=QWEN3_LAYER,
    absent={"num_key_value_heads": 4, "sliding_window": 4096, "moe_intermediate_size": 768, "num_experts_per_tok": 8},
    windows=switched_everywhere,
    moe=experts,
    more=seeing_experts,
)
