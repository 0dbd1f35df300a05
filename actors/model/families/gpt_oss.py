"""gpt-oss: experts with biases and a gate of their own in all layers, windows in every second one, sinks.

Checkpoints have all experts of a layer in one tensor, the rows of gate and up in turn: floats, or MXFP4.
"""

from __future__ import annotations

import msgspec

from ..layers import Axis, LinearSpec, MoeSpec, StackedExperts
from ..shapes import ClampedGate, MoeShape
from ..values import Values
from .dense.llama import llama_layer
from .family import Family, typed_windows
from .qwen_moe import MOST_EXPERTS

FARTHEST = 1e9  # of the gate's numbers
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
EXPERTS = MoeSpec(
    router=LinearSpec("mlp.router", (Axis.EXPERTS,), Axis.HIDDEN, bias=True),
    gate_up=(
        LinearSpec("mlp.experts.{expert}.gate_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN, bias=True),
        LinearSpec("mlp.experts.{expert}.up_proj", (Axis.EXPERT_INTERMEDIATE,), Axis.HIDDEN, bias=True),
    ),
    down=LinearSpec("mlp.experts.{expert}.down_proj", (Axis.HIDDEN,), Axis.EXPERT_INTERMEDIATE, bias=True),
    stacked=StackedExperts(
        gate_up="mlp.experts.gate_up_proj",
        down="mlp.experts.down_proj",
        transposed=True,
        interleaved=True,
        usual=True,
    ),
)


def experts(given: Values, layers: int) -> MoeShape:
    """`intermediate_size` is that of one expert. A softmax of the highest scores alone makes the shares, which is one
    of all scores of which the highest are then made to add up to 1."""
    count = given.whole("num_local_experts", 1, MOST_EXPERTS) or given.needed("num_experts", MOST_EXPERTS)
    alpha, limit = (given.real(name, 0, FARTHEST, above=True) for name in ("swiglu_alpha", "swiglu_limit"))
    return MoeShape(
        experts=count,
        routed=count,
        per_token=given.needed("num_experts_per_tok", count),
        intermediate_size=given.needed("intermediate_size"),
        layers=(True,) * layers,
        normalised=True,
        clamped=ClampedGate(1.702 if alpha is None else alpha, 7.0 if limit is None else limit),
    )


GPT_OSS = Family(
    architectures=("GptOssForCausalLM",),
    layer=msgspec.structs.replace(
        llama_layer(qkv_bias="attention_bias", out_bias="attention_bias"), sinks="self_attn.sinks", moe=EXPERTS
    ),
    absent={
        "attention_bias": True,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150_000.0,
        "rope_parameters": YARN,
    },
    windows=typed_windows(2),
    moe=experts,
)
