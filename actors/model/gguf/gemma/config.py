"""config.json of GGUF files of Gemma 3n and Gemma 4."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from ...families.family import LAYER_TYPES
from ..architectures import Fields, chosen_experts, layer_types, small_tensor
from ..header import GgufHeader

Config = dict[str, Any]
FULL = LAYER_TYPES[False]
LOCAL_BASE, GLOBAL_BASE = 10_000.0, 1_000_000.0
CAP_3N = 30.0  # of logits, which files of Gemma 3n leave out


def _both(fields: Fields, header: GgufHeader, every: int) -> Config:
    """What both have: windows, keys and values that layers share, and embeddings of their own for each layer."""
    per_layer = header.tensors.get("per_layer_token_embd.weight")
    return {
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": fields.counted("attention.sliding_window"),
        "layer_types": layer_types(fields, every),
        "num_kv_shared_layers": fields.count("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": fields.count("embedding_length_per_layer_input") or 0,
        **({} if per_layer is None else {"vocab_size_per_layer_input": per_layer.shape[0]}),
    }


def _bases(fields: Fields) -> tuple[float, float]:
    """By which positions turn, in layers that see all, and in those with windows."""
    return fields.factor("rope.freq_base") or GLOBAL_BASE, fields.factor("rope.freq_base_swa") or LOCAL_BASE


def _sizes(fields: Fields) -> list[int]:
    """The numbers inside of each layer."""
    layers, key = fields.counted("block_count"), fields.own("feed_forward_length")
    sizes = fields[key]
    if not isinstance(sizes, list):
        return [fields.counted("feed_forward_length")] * layers
    if len(sizes) != layers or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise fields.wrong(key, f"a number above 0, or a list of {layers} of them,")
    return sizes


def _gemma3n(fields: Fields, header: GgufHeader) -> Config:
    layers, key = fields.counted("block_count"), fields.own("activation_sparsity_scale")
    scales = fields[key]
    if not isinstance(scales, list) or len(scales) != layers:
        raise fields.wrong(key, f"a list of {layers} numbers")
    left = header.tensors.get("blk.0.laurel_l.weight")
    full, local = _bases(fields)
    rope: Config = {"full_attention": {"rope_theta": full}, "sliding_attention": {"rope_theta": local}}
    return _both(fields, header, 5) | {
        "rope_parameters": {name: one | {"rope_type": "default"} for name, one in rope.items()},
        "intermediate_size": _sizes(fields),
        "final_logit_softcapping": fields.factor("final_logit_softcapping") or CAP_3N,
        "activation_sparsity_pattern": [float(f"{NormalDist().cdf(scale):.6g}") for scale in scales],
        "altup_num_inputs": fields.counted("altup.num_inputs"),
        "altup_active_idx": fields.whole(fields.own("altup.active_idx"), 0, layers) or 0,
        "altup_correct_scale": "blk.0.altup_correct_scale.weight" in header.tensors,
        **({} if left is None else {"laurel_rank": left.shape[0]}),
    }


def _gemma4(fields: Fields, header: GgufHeader) -> Config:
    """Layers that see all have wider heads, of which a part turns; in larger models their keys are the values, too."""
    found = _both(fields, header, 6)
    width, wide = fields.count("attention.key_length_swa"), fields.counted("attention.key_length")
    width = width or wide
    if fields.count("rope.dimension_count_swa") not in (None, width):
        raise fields.wrong_own("rope.dimension_count_swa", f"all numbers of a head with a window, {width},")
    full, local = _bases(fields)
    some = small_tensor(header, "rope_freqs.weight", wide // 2)
    rope = {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": some.count(1.0) / len(some),
            "rope_theta": full,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
    return found | {
        **_heads(fields, header, found["layer_types"]),
        **_wider(fields, found["num_kv_shared_layers"]),
        **_experts(fields),
        "head_dim": width,
        "global_head_dim": wide,
        "rope_parameters": rope,
        "final_logit_softcapping": fields.factor("final_logit_softcapping"),
    }


def _heads(fields: Fields, header: GgufHeader, kinds: list[str]) -> Config:
    """Of keys, in layers with windows, and in those that see all."""
    key = fields.own("attention.head_count_kv")
    value = fields[key]
    counts = value if isinstance(value, list) else [fields.counted("attention.head_count_kv")] * len(kinds)
    if len(counts) != len(kinds):
        raise fields.wrong(key, f"a number, or a list of {len(kinds)} of them,")
    by_kind = {kind: {count for count, own in zip(counts, kinds, strict=True) if own == kind} for kind in kinds}
    if any(len(some) != 1 for some in by_kind.values()):
        raise fields.wrong(key, "the same number for all layers of a kind")
    heads = {kind: some.pop() for kind, some in by_kind.items()}
    local, full = heads.get(LAYER_TYPES[True], heads.get(FULL)), heads.get(FULL)
    layer = kinds.index(FULL) if FULL in kinds else 0
    same = f"blk.{layer}.attn_v.weight" not in header.tensors
    if full != local and not same:
        raise fields.wrong(key, "the same number for all layers, of a model whose keys are not its values,")
    found = {"num_key_value_heads": local, "attention_k_eq_v": same}
    return found | ({"num_global_key_value_heads": full} if same else {})


def _wider(fields: Fields, shared: int) -> Config:
    """MLPs of layers that have no keys of their own may be twice as wide."""
    sizes = _sizes(fields)
    first = len(sizes) - shared
    double = bool(shared) and sizes[-1] == 2 * sizes[0]
    if sizes != [sizes[0] * (2 if double and layer >= first else 1) for layer in range(len(sizes))]:
        raise fields.wrong_own("feed_forward_length", "one size, or twice as much in layers that share keys,")
    return {"intermediate_size": sizes[0], "use_double_wide_mlp": double}


def _experts(fields: Fields) -> Config:
    if not fields.count("expert_count"):
        return {"enable_moe_block": False}
    chosen = chosen_experts(fields, normalised=True)
    return {
        "enable_moe_block": True,
        "num_experts": chosen["num_experts"],
        "top_k_experts": chosen["num_experts_per_tok"],
        "moe_intermediate_size": fields.counted("expert_feed_forward_length"),
    }


WINDOWED = ("attention.sliding_window", "final_logit_softcapping")
OWN: dict[str, tuple[Callable[[Fields, GgufHeader], Config], tuple[str, ...]]] = {
    "gemma3n": (_gemma3n, WINDOWED),
    "gemma4": (_gemma4, ("expert_count", *WINDOWED)),
}
