"""OLMo 2 and OLMo 3: norms behind attention and MLP instead of before them, and of all heads of q and of k together."""

from __future__ import annotations

import msgspec

from ..family import Family, ropes_by_type, typed_windows
from .llama import llama_layer

LAYER = msgspec.structs.replace(
    llama_layer(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True),
    attention_norm=None,
    joint_norms=True,
    attention_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)
ABSENT = {"rms_norm_eps": 1e-5}

OLMO2 = Family(architectures=("Olmo2ForCausalLM",), layer=LAYER, absent=ABSENT)
OLMO3 = Family(
    architectures=("Olmo3ForCausalLM",),
    layer=LAYER,
    absent={**ABSENT, "sliding_window": 4096, "rope_theta": 500_000.0},
    windows=typed_windows(4),
    ropes_of=ropes_by_type(lambda given: {}),
)
