"""InternLM 2 and 2.5: Llama by other names, with q, k and v of each KV head one behind the other in one tensor."""

from __future__ import annotations

from ...layers import EMBEDDINGS, HEAD, Axis, LayerSpec, LinearSpec
from ..family import Family

NAMES = (("model.tok_embeddings.", f"{EMBEDDINGS}."), ("output.", f"{HEAD}."))

INTERNLM2 = Family(
    architectures=("InternLM2ForCausalLM",),
    layer=LayerSpec(
        attention_norm="attention_norm",
        qkv=(LinearSpec("attention.wqkv", (Axis.QUERIES, Axis.KEYS, Axis.VALUES), Axis.HIDDEN, "bias"),),
        out=LinearSpec("attention.wo", (Axis.HIDDEN,), Axis.QUERIES, "bias"),
        mlp_norm="ffn_norm",
        gate_up=(
            LinearSpec("feed_forward.w1", (Axis.INTERMEDIATE,), Axis.HIDDEN),
            LinearSpec("feed_forward.w3", (Axis.INTERMEDIATE,), Axis.HIDDEN),
        ),
        down=LinearSpec("feed_forward.w2", (Axis.HIDDEN,), Axis.INTERMEDIATE),
    ),
    absent={"bias": True, "max_position_embeddings": 2048},
    names=NAMES,
    more=lambda given: {"grouped_qkv": True},
)
