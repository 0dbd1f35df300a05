"""From a folder to a drafter of blocks (DFlash): its config.json and tensors, compared with the model's.

Read as its authors write it (z-lab), SpecForge, and speculators, which differ in where config.json has what. Knows
files; no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from ..architecture import Architecture
from ..config_json import ACTIVATIONS, LARGEST, MOST_LAYERS
from ..families.family import check_layer_types
from ..values import Values
from ..weights.weight_files import read_weights
from .checkpoints import Head, check_sizes, checked, head_config, own_sizes, renamed
from .formats import BLOCK_LAYER, EMBEDDING, BlockShape, TargetStates

ARCHITECTURES = ("DFlashDraftModel", "DFlashSpeculator")
FIRST, LAST = 1, 3  # layers that are read where nobody names them: from this one to so many before the end
OTHERWISE = {  # variants that are computed in another way: where they say so, and what each has if it is not one
    "use_aux_hidden_state": True,
    "use_swa": False,
    "attention_sink_bias": False,
    "add_swa_attention_sink_bias": False,
    "sample_from_anchor": False,
    "shift_label": False,
    "sliding_window_non_causal": False,
    "projector_type": "dflash",
    "output_multiplier": 1,
    "is_neox_style": True,
}
MASK_FILE = "mask_embedding.pt"


def read_blocks(folder: Path, target: Architecture, wanted: int) -> Head:
    """The drafter in a folder, of which `wanted` drafts are taken. ConfigError says what does not fit."""
    given = head_config(folder, "DFlash", (), ARCHITECTURES)
    own = given.object("dflash_config") or Values(given.file, {})
    for key, usual in {**OTHERWISE, "final_logit_softcapping": target.logits_cap}.items():
        holder = _holder(given, own, key)
        if holder[key] not in (None, usual):
            raise ConfigError(f"model: {holder.file} says {key} = {holder[key]!r}, which is not supported")
    if (folder / MASK_FILE).exists():
        raise ConfigError(f"model: {folder} has {MASK_FILE}, which is not supported")
    block = _holder(given, own, "block_size").needed("block_size", LARGEST)
    if wanted >= block:
        raise ConfigError(
            f"num_speculative_tokens: {wanted} is more than the {block - 1} that blocks of {block} hold in {folder}"
        )
    found, names = renamed(folder, read_weights(folder))
    check_sizes(given, target, f"{EMBEDDING}.weight" in found)
    layers = given.needed("num_hidden_layers", MOST_LAYERS)
    windows, causal = _attention(given, own, layers)
    shape = BlockShape(
        **own_sizes(given, target, found),
        windows=windows,
        activation=_activation(given),
        embedding_scale=_holder(given, own, "input_embedding_scale").real("input_embedding_scale", 0, 1e6) or 1.0,
        layer=BLOCK_LAYER.with_biases(lambda linear: f"layers.0.{linear}.bias" in found),
        states=TargetStates(_layers_read(given, own, target, layers)),
        block=block,
        mask=_mask(_holder(given, own, "mask_token_id"), target),
        causal=causal,
    )
    return checked(folder, shape, found, names)


def _holder(given: Values, own: Values, key: str) -> Values:
    """Where a value stands: in the object for it, or beside that."""
    return given if own[key] is None else own


def _activation(given: Values) -> str:
    name = given.text("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise given.wrong("hidden_act", f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _mask(holder: Values, target: Architecture) -> int:
    """The token that stands where one is to be said."""
    mask = holder.whole("mask_token_id", 0, LARGEST)
    if mask is None or mask >= target.vocab_size:
        raise holder.wrong("mask_token_id", f"a word of the model's {target.vocab_size}")
    return mask


def _attention(given: Values, own: Values, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """(windows, which layers are causal), by layer: without a word of it those with a window are."""
    kinds = given["layer_types"]
    if kinds is None:
        kinds = ["full_attention"] * layers
    check_layer_types(given, kinds, layers)
    slides = [kind == "sliding_attention" for kind in kinds]
    if any(slides) and given.whole("sliding_window") is None:
        raise given.wrong("sliding_window", "the window of the layers of sliding_attention")
    told = given if given["is_causal"] is not None else own
    key = "is_causal" if told is given else "causal"
    causal = [told.flag(key, slide) for slide in slides]
    if any(slide and not own_causal for slide, own_causal in zip(slides, causal, strict=True)):
        raise told.wrong(key, "true for layers of sliding_attention")
    window = given.whole("sliding_window")
    return tuple(window if slide else None for slide in slides), tuple(causal)


def _layers_read(given: Values, own: Values, target: Architecture, layers: int) -> tuple[int, ...]:
    """Before which layers of the model it reads.

    `target_layer_ids` are of layers whose output is read; `aux_hidden_state_layer_ids` of speculators those whose input
    is. Without either as many layers as its own, evenly.
    """
    for key, back in (("target_layer_ids", 1), ("aux_hidden_state_layer_ids", 0)):
        holder = _holder(given, own, key)
        ids: Any = holder[key]
        if ids is None:
            continue
        if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
            raise holder.wrong(key, "a list of layers")
        found = tuple(one + back for one in ids)
        if min(found) < 0 or max(found) > target.layers:
            raise holder.wrong(key, f"layers of the model, which has {target.layers},")
        return found
    if layers == 1:
        return (target.layers // 2 + 1,)
    last = target.layers - LAST
    if last < FIRST:
        raise given.wrong("target_layer_ids", f"a list of layers of the model, which has {target.layers},")
    return tuple(round(FIRST + number * (last - FIRST) / (layers - 1)) + 1 for number in range(layers))
