"""DeepSeek V3.2, and GLM-5, which is built so: as V3, but a query sees the tokens alone that an indexer finds likeliest
(DeepSeek Sparse Attention); of GLM-5 some layers see what the one before them has chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..layers import Axis, IndexSpec, LayerSpec, LinearSpec
from ..shapes import IndexShape, LatentShape
from ..values import Values
from .deepseek import CORRECTED, LARGEST, OF_LATENT, latent, latent_layer, listed_experts
from .family import Family

KINDS, LETTERS = ("full", "shared"), ("F", "S")  # of layers; in a pattern letters
INDEX = IndexSpec(
    queries=LinearSpec("self_attn.indexer.wq_b", (Axis.INDEX_QUERIES,), Axis.Q_LATENT),
    key=LinearSpec("self_attn.indexer.wk", (Axis.INDEX_KEY,), Axis.HIDDEN),
    norm="self_attn.indexer.k_norm",
    weights=LinearSpec("self_attn.indexer.weights_proj", (Axis.INDEX_HEADS,), Axis.HIDDEN),
)
LAYER: LayerSpec = msgspec.structs.replace(
    latent_layer(CORRECTED), latent=msgspec.structs.replace(OF_LATENT, index=INDEX)
)


def indexed(interleaved: bool) -> Callable[[Values], dict[str, Any]]:
    """What differs from other attention; `interleaved`: how heads of the indexer turn."""

    def more(given: Values) -> dict[str, Any]:
        given.needed("q_lora_rank", LARGEST)
        found = latent(LAYER)(given)
        sizes: LatentShape = found["latent"]
        index = IndexShape(
            topk=given.needed("index_topk", LARGEST),
            heads=given.needed("index_n_heads", LARGEST),
            dim=given.needed("index_head_dim", LARGEST),
            interleaved=given.flag("indexer_rope_interleave", absent=interleaved),
            layers=choosing_layers(given, given.needed("num_hidden_layers", LARGEST)),
        )
        if index.dim % 2 or index.dim < sizes.turning:
            raise given.wrong("index_head_dim", f"an even number, and at least {sizes.turning} (qk_rope_head_dim),")
        return found | {"latent": msgspec.structs.replace(sizes, index=index)}

    return more


def choosing_layers(given: Values, layers: int) -> tuple[bool, ...]:
    """By `indexer_types`, or a pattern (F, S), or each `index_topk_freq`-th from the `index_skip_topk_offset`-th on. A
    list may go on for the layers behind the last, which predict further tokens.
    """
    field = "indexer_types" if given["indexer_types"] is not None else "index_topk_pattern"
    kinds = given[field]
    if kinds is None:
        every = max(given.whole("index_topk_freq", 0) or 1, 1)
        offset = given.whole("index_skip_topk_offset", 0)
        behind = 2 if offset is None else offset
        return tuple(max(layer - behind + 1, 0) % every == 0 for layer in range(layers))
    full, shared = zip(KINDS, LETTERS, strict=True)
    kinds = [*kinds] if isinstance(kinds, str) and field != "indexer_types" else kinds
    if not isinstance(kinds, list) or len(kinds) < layers or any(kind not in (*full, *shared) for kind in kinds):
        raise given.wrong(field, f"for each of {layers} layers {' or '.join(KINDS)}")
    if kinds[0] not in full:
        raise given.wrong(field, f"{KINDS[0]} for the first layer")
    return tuple(kind in full for kind in kinds[:layers])


ABSENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "index_topk": 2048,
    "index_head_dim": 128,
}
DEEPSEEK_V32 = Family(
    architectures=("DeepseekV32ForCausalLM",),
    layer=LAYER,
    absent={
        **ABSENT,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "index_n_heads": 64,
    },
    moe=listed_experts,
    interleaved=True,
    more=indexed(interleaved=False),
)
GLM_MOE_DSA = Family(
    architectures=("GlmMoeDsaForCausalLM",),
    layer=LAYER,
    absent={
        **ABSENT,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
    },
    moe=listed_experts,
    interleaved=True,
    more=indexed(interleaved=True),
)
