"""Granite 3, and Granite 4 where no layer has states or experts (micro, 1B and 350M): Llama with factors for
embeddings, scores, what layers add, and logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...layers import Axis, LinearSpec
from ...values import Unsupported, Values
from ..family import Family, Windows
from .llama import llama_layer

LARGEST = 1e9
FIELDS = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "scale": "attention_multiplier",
}


def multipliers(given: Values) -> dict[str, Any]:
    """All of them are 1 where they are missing; logits are divided."""
    found = {name: given.real(field, 0, LARGEST, above=True) for name, field in FIELDS.items()}
    divisor = given.real("logits_scaling", 0, LARGEST, above=True) or 1.0
    return {name: 1.0 if value is None else value for name, value in found.items()} | {
        "logits_scale": 1 / divisor,
        "scales_inputs": True,
    }


GRANITE = Family(
    architectures=("GraniteForCausalLM",),
    layer=llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    more=multipliers,
)


def without_states(given: Values) -> dict[str, Any]:
    """The MLP has the name of that beside experts. Unsupported: it has some, or layers with states."""
    layers, kinds = given.needed("num_hidden_layers"), given["layer_types"]
    kinds = given["layers_block_type"] if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in ATTENTION for kind in kinds):
        raise Unsupported(
            f"model: layer_types other than {layers} times {ATTENTION[0]} is not supported ({given.file})"
        )
    if given.whole("num_local_experts", 0) != 0:
        raise Unsupported(f"model: num_local_experts other than 0 is not supported ({given.file})")
    return {**multipliers(given), "intermediate_size": given.needed("shared_intermediate_size")}


def ropes_if_any(given: Values, windows: Windows) -> Sequence[Values | None]:
    """All layers turn, or none."""
    return [given if given.text("position_embedding_type") == "rope" else None] * len(windows)


ATTENTION = ("attention", "full_attention")  # names of a kind of layers, by older and newer versions of transformers
GRANITE4 = Family(
    architectures=("GraniteMoeHybridForCausalLM",),
    layer=msgspec.structs.replace(
        llama_layer(qkv_bias="attention_bias", out_bias="attention_bias"),
        gate_up=(LinearSpec("shared_mlp.input_linear", (Axis.INTERMEDIATE, Axis.INTERMEDIATE), Axis.HIDDEN),),
        down=LinearSpec("shared_mlp.output_linear", (Axis.HIDDEN,), Axis.INTERMEDIATE),
    ),
    absent={"num_local_experts": 8, "shared_intermediate_size": 1024},
    ropes_of=ropes_if_any,
    more=without_states,
)
