"""Llama 4 (text): most layers see a chunk of positions and turn; the others see everything, do not turn, and their
queries grow with the position. Experts take their token times its share, beside an MLP for all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..layers import Axis, LayerSpec, LinearSpec, MoeSpec, StackedExperts
from ..rope import Growth
from ..shapes import MoeShape, Scoring
from ..values import Values
from .dense.llama import llama_layer
from .dense.smollm3 import some_ropes
from .family import Family, Windows
from .qwen_moe import MOST_EXPERTS

KINDS = ("full_attention", "chunked_attention")
FARTHEST = 1e9  # of a number


def _mlp(name: str, axis: Axis) -> dict[str, Any]:
    gate, up = (LinearSpec(f"{name}.{part}_proj", (axis,), Axis.HIDDEN) for part in ("gate", "up"))
    return {"gate_up": (gate, up), "down": LinearSpec(f"{name}.down_proj", (Axis.HIDDEN,), axis)}


SHARED = _mlp("feed_forward.shared_expert", Axis.SHARED_INTERMEDIATE)
LAYER: LayerSpec = msgspec.structs.replace(
    llama_layer(qkv_bias="attention_bias", out_bias="attention_bias"),
    **_mlp("feed_forward", Axis.INTERMEDIATE),
    moe=MoeSpec(
        router=LinearSpec("feed_forward.router", (Axis.EXPERTS,), Axis.HIDDEN),
        **_mlp("feed_forward.experts.{expert}", Axis.EXPERT_INTERMEDIATE),
        shared_gate_up=SHARED["gate_up"],
        shared_down=SHARED["down"],
        stacked=StackedExperts(
            gate_up="feed_forward.experts.gate_up_proj",
            down="feed_forward.experts.down_proj",
            transposed=True,
            usual=True,
        ),
    ),
)


def ropes(given: Values, windows: Windows) -> Sequence[Values | None]:
    """An empty `no_rope_layers` is as if there was none."""
    known = {name: value for name, value in given.values.items() if name != "no_rope_layers" or value}
    return some_ropes(Values(given.file, known), windows)


def experts(given: Values, layers: int) -> MoeShape | None:
    """In each `interleave_moe_layer_step`-th layer, or in those that `moe_layers` names."""
    count, listed = given.needed("num_local_experts", MOST_EXPERTS), given["moe_layers"]
    if listed is None:
        step = given.whole("interleave_moe_layer_step") or 1
        listed = list(range(step - 1, layers, step))
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise given.wrong("moe_layers", "a list of numbers of layers")
    size = given.needed("intermediate_size")
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.needed("num_experts_per_tok", count),
        intermediate_size=size,
        layers=tuple(layer in listed for layer in range(layers)),
        scoring=Scoring.SIGMOID,
        shared_intermediate_size=size,
        of_inputs=True,
    )


def more(given: Values) -> dict[str, Any]:
    """The MLP of layers without experts is wider."""
    layers, chunk = given.needed("num_hidden_layers"), given.whole("attention_chunk_size")
    turning = [own is not None for own in ropes(given, (None,) * layers)]
    kinds = given["layer_types"]
    if kinds is None:
        kinds = [KINDS[turns] for turns in turning]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in KINDS for kind in kinds):
        raise given.wrong("layer_types", f"a list of {layers} times {' or '.join(KINDS)}")
    growth = None
    tuning = given["attn_temperature_tuning"]  # a number, 4, at first
    if tuning != 0 if type(tuning) is int else given.flag("attn_temperature_tuning", absent=True):
        scale, floor = (given.real(name, 0, FARTHEST, above=True) for name in ("attn_scale", "floor_scale"))
        growth = Growth(0.1 if scale is None else scale, 8192 if floor is None else floor)
    return {
        "intermediate_size": given.needed("intermediate_size_mlp"),
        "chunks": tuple(chunk if kind == KINDS[1] else None for kind in kinds),
        "unit_norms": given.flag("use_qk_norm", absent=True),
        "growth": growth,
    }


LLAMA4 = Family(
    architectures=("Llama4ForCausalLM",),
    layer=LAYER,
    absent={
        "head_dim": 128,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
        "intermediate_size_mlp": 16384,
    },
    moe=experts,
    ropes_of=ropes,
    interleaved=True,
    more=more,
)
