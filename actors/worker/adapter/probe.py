"""What a model keeps of tokens and how its layers attend: seen as it computes two tokens.

No table of architectures: a cache that records and an attention function that records tell, for each layer, the shapes
of keys and values, the scale, a soft cap, sinks, what may be seen, and whether a layer goes on with the very tensors
that it gave to the cache. It may not: then what it does with them (multi-head latent attention expands a latent) has to
be done with those of all tokens before, and the layer is given the gathered contexts (`gathered`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from ...model.memory.kv import KVSpec, LayerAttention, StateSpec
from .cache.caches import Caches
from .cache.layers import CARRIERS
from .cache.row_states import state_name
from .hooks import Call, Mask, Unfit, as_scale, attending, lent_attention
from .masks import Visibility, classify
from .passes import Passes

HARMLESS = {"dropout", "is_causal", "use_cache", "position_ids", "output_attentions", "cache_position"}
HARMLESS |= {
    "position_embeddings",
    "training",
    "head_mask",
    "layer_idx",
    "deterministic",
    "logits_to_keep",
    "return_dict",
}
KNOWN = {"scaling", "softcap", "s_aux", "sliding_window"}
TOKENS = 2


class AttentionCall(NamedTuple):
    """One call of attention in a forward pass, by its order among them."""

    layer: int  # in the KVSpec
    source: int  # the layer of the cache that has its keys and values
    gathered: bool


class Traits(NamedTuple):
    """What was seen of a model."""

    kv: KVSpec
    asked: tuple[AttentionCall, ...]
    gathered: frozenset[int]  # layers of the cache that go on with contexts
    beside: dict[tuple[int, str], int]  # layers of the KVSpec that have what one of the cache keeps under a name
    paged: bool  # all attention goes by our function; else transformers' own has to be used
    reason: str  # why not
    positions: bool  # they can be given with the tokens
    caches: Caches

    @property
    def stateful(self) -> bool:
        """Is there more than keys and values of tokens?"""
        return bool(self.kv.states)


class Recorder:
    """Plays the part of who computes."""

    past = 0

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}
        self.given: dict[int, tuple[Tensor, Tensor]] = {}
        self.beside: dict[tuple[int, str], int] = {}  # widths
        self.latest = -1
        self.calls: list[tuple[Call, int, bool]] = []

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3]:
            raise Unfit(f"keeps keys of the shape {list(keys.shape)} and values of {list(values.shape)}")
        if keys.shape[2] != TOKENS:
            raise Unfit(f"keeps {keys.shape[2]} keys of {TOKENS} tokens")
        if layer in self.given:
            raise Unfit(f"writes keys of layer {layer} twice")
        self.shapes[layer] = (keys.shape[1], keys.shape[3], values.shape[3])
        self.given[layer] = keys, values
        self.latest = layer
        return keys, values

    def keep(self, layer: int, name: str, new: Tensor, start: int = 0) -> Tensor:
        """See cache/layers.py:Keeper."""
        self.beside[layer, name] = new.shape[2]
        return new

    def keep_groups(self, layer: int, name: str, new: Tensor, size: int) -> Tensor:
        """See cache/layers.py:Keeper."""
        self.beside[layer, name] = new.shape[2] // CARRIERS
        return new

    def attend(self, call: Call) -> Tensor:
        queries, values = call.queries, call.values
        if not self.given:
            raise Unfit("attends without a cache")
        source = next((layer for layer, (keys, _) in self.given.items() if keys is call.keys), None)
        gathered = source is None or self.given[source][1] is not call.values
        self.calls.append((call, self.latest if source is None else source, gathered))
        return queries.new_zeros(queries.shape[0], queries.shape[2], queries.shape[1], values.shape[3])


def probe(model: Any, length: int) -> Traits:
    """Look at a model, hollow or not, for texts of up to `length` tokens. Unfit says why it cannot be had."""
    caches = Caches(model.config)
    passes = Passes(model)
    try:
        return _paged(passes, caches, length)
    except Unfit as error:
        reason = str(error)
    except (AttributeError, TypeError, ValueError, RuntimeError, KeyError, IndexError, NotImplementedError) as error:
        reason = f"does more with masks than hand them on ({type(error).__name__}: {str(error).splitlines()[0]})"
    return _unpaged(passes, caches, reason)


def _paged(passes: Passes, caches: Caches, length: int) -> Traits:
    """With our attention."""
    model = passes.model
    with lent_attention(model):
        recorder = Recorder()
        states = run_probe(passes, caches, recorder)
    if silent := sorted(recorder.shapes.keys() - {source for _, source, _ in recorder.calls}):
        raise Unfit(f"attends by itself in layer {silent[0]}")
    if recorder.beside:
        raise Unfit("keeps more of tokens than keys and values")
    attentions, asked = _describe(recorder, length)
    kv = KVSpec(layers=tuple(attentions), states=tuple(states))
    gathered = frozenset(one.source for one in asked if one.gathered)
    return Traits(kv, tuple(asked), gathered, {}, True, "", passes.positions, caches)


def _unpaged(passes: Passes, caches: Caches, reason: str) -> Traits:
    """With transformers' own attention; of KV memory the shapes alone matter."""
    recorder = Recorder()
    states = run_probe(passes, caches, recorder)
    if not recorder.shapes and not states:
        raise Unfit("keeps nothing in its cache")
    count = max(recorder.shapes, default=-1) + 1
    layers = [_kept(recorder, index, caches.windows.get(index)) for index in range(count)]
    beside = {place: count + number for number, place in enumerate(recorder.beside)}
    kv = KVSpec(layers=(*layers, *map(_kept_alone, recorder.beside.values())), states=tuple(states))
    return Traits(kv, (), frozenset(), beside, False, reason, passes.positions, caches)


def _kept(recorder: Recorder, layer: int, window: int | None) -> LayerAttention | None:
    """Keys and values of a layer of the cache, if it has any."""
    if (shape := recorder.shapes.get(layer)) is None:
        return None
    heads, key_dim, value_dim = shape
    keys, values = recorder.given[layer]
    kept = LayerAttention(heads=heads, kv_heads=heads, key_dim=key_dim, value_dim=value_dim, scale=1.0, window=window)
    return msgspec.structs.replace(kept, values_in_keys=keys is values or not value_dim)  # or there are keys alone


def _kept_alone(width: int) -> LayerAttention:
    """What is kept of tokens, and not attended to: nothing of it is kept twice."""
    return LayerAttention(heads=1, kv_heads=1, key_dim=width, value_dim=width, scale=1.0, values_in_keys=True)


def run_probe(passes: Passes, caches: Caches, recorder: Recorder) -> list[StateSpec]:
    """Two tokens; the states that are left behind."""
    cache = caches.make(recorder)
    with torch.inference_mode(), attending(recorder):
        passes.hidden(torch.ones(1, TOKENS, dtype=torch.long), torch.arange(TOKENS)[None], cache)
    return _states(cache)


def _states(cache: Any) -> list[StateSpec]:
    found = []
    for index, layer in enumerate(cache.layers):
        for kind in ("conv", "recurrent"):
            for number, state in getattr(layer, f"{kind}_states", {}).items():
                if state is not None:
                    dtype = str(state.dtype).removeprefix("torch.")
                    found.append(
                        StateSpec(layer=index, name=state_name(kind, number), shape=tuple(state.shape[1:]), dtype=dtype)
                    )
    return found


def _describe(recorder: Recorder, length: int) -> tuple[list[LayerAttention | None], list[AttentionCall]]:
    """The layers of the cache, then calls that read the keys of one of them once more."""
    layers: list[LayerAttention | None] = [None] * (max(recorder.shapes, default=-1) + 1)
    asked, seen = [], Counter[int]()
    known: dict[int, Visibility] = {}
    for call, source, gathered in recorder.calls:
        one = _attention(call, recorder.shapes[source], _seen(call, known, length))
        seen[source] += 1
        if seen[source] == 1:
            index, layers[source] = source, one
        else:
            index = len(layers)
            layers.append(_with_source(one, source))
        asked.append(AttentionCall(index, source, gathered))
    return layers, asked


def _with_source(one: LayerAttention, source: int) -> LayerAttention:
    return msgspec.structs.replace(one, source=source)


def _attention(call: Call, shape: tuple[int, int, int], seen: Visibility) -> LayerAttention:
    options = {name: value for name, value in call.options.items() if value is not None and name not in HARMLESS}
    unknown = sorted(name for name in options if name not in KNOWN and isinstance(options[name], Tensor))
    if unknown:
        raise Unfit(f"asks for attention with {unknown[0]}")
    return LayerAttention(
        heads=call.queries.shape[1],
        kv_heads=shape[0],
        key_dim=shape[1],
        value_dim=shape[2],
        scale=as_scale(options.get("scaling"), call.queries.shape[3]),
        window=seen.window,
        chunk=seen.chunk,
        soft_cap=options.get("softcap"),
        sinks=options.get("s_aux") is not None,
    )


def _seen(call: Call, known: dict[int, Visibility], length: int) -> Visibility:
    """By the mask's predicate; a model that makes none says in another way that it is causal."""
    mask = call.mask
    if isinstance(mask, Mask):
        if id(mask) not in known:
            known[id(mask)] = classify(mask.predicate, length)
        return known[id(mask)]
    causal = call.options.get("is_causal")
    if mask is None and (getattr(call.module, "is_causal", False) if causal is None else causal):
        return Visibility()
    raise Unfit("makes masks by itself" if mask is not None else "does not say what may be seen")
