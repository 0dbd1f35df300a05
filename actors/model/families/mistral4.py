"""Mistral Small 4 and Mistral Large 3: latent attention and experts as DeepSeek V3 has them, but these are chosen by a
softmax, and queries grow with the position as those of Ministral 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..layers import MoeSpec
from ..shapes import MoeShape, Scoring
from ..values import Values
from .deepseek import SHARED, check_field, latent, latent_layer, routed_experts
from .family import Family, Windows
from .mistral import stretched_growth

TURNING = "partial_rotary_factor"
ROUNDED: MoeSpec = msgspec.structs.replace(SHARED, float32_scores=False)
LAYER = latent_layer(ROUNDED)


def experts(given: Values, layers: int) -> MoeShape | None:
    """All that were published have them in one group."""
    check_field(given, "n_group", (1,))
    return routed_experts(given, layers, Scoring.SOFTMAX, given.flag("norm_topk_prob"), None)


def ropes(given: Values, windows: Windows) -> Sequence[Values | None]:
    """The part of a head that turns has a width of its own, so that a factor says nothing more."""
    plain, turning = (given.needed(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    known = dict(given.values)
    for name in ("rope_scaling", "rope_parameters"):
        rope = given.object(name)
        factor = None if rope is None else rope.real(TURNING, 0, 1)
        if rope is None or factor is None:
            continue
        if round((plain + turning) * factor) != turning:
            raise rope.wrong(
                TURNING, f"qk_rope_head_dim of {plain + turning} numbers, {turning / (plain + turning):g},"
            )
        known[name] = {key: value for key, value in rope.values.items() if key != TURNING}
    return [Values(given.file, known)] * len(windows)


def more(given: Values) -> dict[str, Any]:
    """What differs from other attention."""
    return latent(LAYER)(given) | stretched_growth(given)


MISTRAL4 = Family(
    architectures=("Mistral4ForCausalLM",),
    layer=LAYER,
    absent={
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    moe=experts,
    ropes_of=ropes,
    interleaved=True,
    more=more,
)
