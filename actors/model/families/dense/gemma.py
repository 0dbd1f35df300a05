"""Gemma 2 and Gemma 3 (text): norms before and behind attention and MLP, windows in most layers, scaled embeddings."""

from __future__ import annotations

from typing import Any

import msgspec

from ...values import Values
from ..family import Family, ropes_by_type, typed_windows
from .llama import llama_layer

LAYER = msgspec.structs.replace(
    llama_layer(qkv_bias="attention_bias", out_bias="attention_bias"),
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
ABSENT = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
LARGEST_CAP = 1e9


def scales(given: Values) -> dict[str, Any]:
    """A norm multiplies with one more than its weights; embeddings are as long as their width's root."""
    if given.flag("use_bidirectional_attention"):
        raise given.wrong("use_bidirectional_attention", "false, for a model that writes,")
    scalar = given.real("query_pre_attn_scalar", 0, LARGEST_CAP, above=True)
    return {
        "norm_offset": 1.0,
        "embedding_scale": given.needed("hidden_size") ** 0.5,
        "scale": None if scalar is None else scalar**-0.5,
        "soft_cap": given.real("attn_logit_softcapping", 0, LARGEST_CAP, above=True),
        "logits_cap": given.real("final_logit_softcapping", 0, LARGEST_CAP, above=True),
    }


def pattern_windows(given: Values, layers: int) -> tuple[int | None, ...]:
    """Older files say it with a number, `sliding_window_pattern`."""
    return typed_windows(given.whole("sliding_window_pattern") or 6)(given, layers)


GEMMA2 = Family(
    architectures=("Gemma2ForCausalLM",),
    layer=LAYER,
    absent={**ABSENT, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    windows=typed_windows(2),
    activation="hidden_activation",
    more=scales,
)
GEMMA3 = Family(
    architectures=("Gemma3ForCausalLM",),
    layer=msgspec.structs.replace(LAYER, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    absent={**ABSENT, "rope_theta": 1_000_000.0},
    windows=pattern_windows,
    ropes_of=ropes_by_type(lambda given: {"rope_theta": given["rope_local_base_freq"] or 10_000.0}),
    activation="hidden_activation",
    more=scales,
)
