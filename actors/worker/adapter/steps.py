"""Who computes one forward pass of a model of transformers: what its cache and its attention function ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.cpu.attention import StepAttention, contexts
from actorserve.kernels.cpu.native.heads import HeadRules
from actorserve.kernels.cpu.native.layers import PlainLayers
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ..cpu.layers.native import FEW_TOKENS
from ..cpu.memory.window_tables import AnyKV
from ..lora.sites import LoraSites
from .cache.layers import CARRIERS
from .fused.parts import Turn
from .hooks import Call, Unfit
from .probe import Traits


class AdaptedStep:
    """What all have in common."""

    past = 0
    lora: LoraSites | None = None

    def __init__(self, kv: AnyKV, slots: Tensor) -> None:
        self.kv = kv
        self.slots = slots

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [rows, heads, tokens, width] of a layer."""
        flat = (part.transpose(1, 2).flatten(0, 1) for part in (keys, values))
        self.kv.write(layer, self.slots, *flat)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See cache/layers.py:KeysValues."""
        raise NotImplementedError

    def attend(self, call: Call) -> Tensor:
        """See hooks.py:Attending."""
        raise Unfit("asks for attention that nobody has prepared")


class PagedStep(AdaptedStep):
    """Attention is ours."""

    def __init__(self, traits: Traits, kv: AnyKV, slots: Tensor, attention: Any) -> None:
        super().__init__(kv, slots)
        self.traits = traits
        self.attention = attention
        self.given: dict[int, tuple[Tensor, Tensor]] = {}
        self.calls = iter(traits.asked)
        self.whole = len(slots) <= FEW_TOKENS  # layers that can be are computed at once
        self.stream: Tensor | None = None  # what the last of them made
        self.all_done = False  # that is what all of them make
        self.in_order = in_order(traits)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, keys, values)
        if layer in self.traits.gathered:
            found = self.attention.contexts(layer)
            keys, values = (torch.cat(parts, 1)[None] for parts in zip(*found, strict=True))
        self.given[layer] = keys, values
        return keys, values

    def attend(self, call: Call) -> Tensor:
        asked = next(self.calls, None)
        queries = call.queries.transpose(1, 2)
        flat = queries.flatten(0, 1)
        sinks = call.options.get("s_aux")
        if asked is None:
            raise Unfit("asks for attention more often than when it was tried")
        if asked.gathered:
            ends = torch.tensor([span.position + span.size for span in self.attention.spans])
            keys, values = (part[0].split(ends.tolist(), 1) for part in (call.keys, call.values))
            out = self.attention.attend_gathered(asked.layer, flat, keys, values, sinks)
        else:
            keys_, values_ = self.given[asked.source]
            if call.keys is not keys_ or call.values is not values_:
                raise Unfit("attends to other keys than when it was tried")
            out = self.attention(asked.layer, flat, sinks)
        result: Tensor = out.view(*queries.shape[:3], -1)
        return result

    def whole_layer(
        self, layers: PlainLayers, number: int, layer: int, hidden: Tensor, turn: Turn, alike: bool
    ) -> Tensor | None:
        """What a layer makes of hidden states, if it can be computed at once; see fused/parts.py. `alike`: all layers
        are given what this one is, so that the first may compute what comes of all of them."""
        attention = self.attention if self.whole else None
        if not isinstance(attention, StepAttention) or (native := attention.native_of(layer)) is None:
            return None
        if self.lora is not None and not self.lora.joins(layers):
            return None
        lora = None if self.lora is None else self.lora.added(layers)
        self._next(layer)
        if self.all_done:
            if hidden is not self.stream:
                raise Unfit("does more between its layers than when it was tried")
            return hidden
        if hidden is not self.stream:
            self.stream = hidden = hidden.clone()
        rows, of_all = hidden.view(-1, hidden.shape[-1]), attention.of_all_layers
        if alike and number == 0 and of_all is not None and self.in_order:
            layers.forward_all(rows, self.slots, self.slots, of_all, turn, lora)
            self.all_done = True
        else:
            layers.forward_one(number, rows, (*turn, self.slots), *native, lora)
        return hidden

    def _next(self, layer: int) -> None:
        """The next layer that attends is this one, to its own keys."""
        asked = next(self.calls, None)
        if asked is None or asked.gathered or asked.source != layer or asked.layer != layer:
            raise Unfit("attends to other keys than when it was tried")

    def mix(self, layer: int, qkv: Tensor, rules: HeadRules, sinks: Tensor | None) -> Tensor:
        """Attention of rows of q, k and v, whose heads are what attention is given; see fused/parts.py."""
        self._next(layer)
        keys_from = rules.heads * rules.head_dim
        values_from = keys_from + rules.kv_heads * rules.head_dim
        kv_heads = (rules.kv_heads, -1)
        if 2 * (values_from - keys_from) == qkv.shape[1] - keys_from:
            self.kv.write_joined(layer, self.slots, qkv[:, keys_from:].unflatten(1, (2, *kv_heads)))
        else:
            keys, values = qkv[:, keys_from:values_from], qkv[:, values_from:]
            self.kv.write(layer, self.slots, keys.unflatten(1, kv_heads), values.unflatten(1, kv_heads))
        queries = qkv[:, :keys_from].unflatten(1, (rules.heads, -1))
        mixed: Tensor = self.attention(layer, queries, sinks).flatten(1)
        return mixed


class GatheredStep(AdaptedStep):
    """Attention is the model's own, of one row."""

    def __init__(self, traits: Traits, kv: PagedKV, slots: Tensor, span: Span) -> None:
        super().__init__(kv, slots)
        self.traits, self.span = traits, span

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, keys, values)
        rule = self.traits.kv.layers[layer]
        assert rule is not None
        own_keys, own_values = self._from(layer, rule.first_seen(self.span.position))
        return own_keys[None], own_values[None]

    def keep(self, layer: int, name: str, new: Tensor, start: int = 0) -> Tensor:
        """See cache/layers.py:Keeper."""
        place = self.traits.beside[layer, name]
        self.write(place, new[:, None], new[:, None])
        return self._from(place, start)[0]

    def keep_groups(self, layer: int, name: str, new: Tensor, size: int) -> Tensor:
        """See cache/layers.py:Keeper."""
        place, (position, tokens) = self.traits.beside[layer, name], (self.span.position, self.span.size)
        ends = torch.arange(position // size + 1, (position + tokens) // size + 1) * size
        carriers = (ends[:, None] - CARRIERS + torch.arange(CARRIERS)).flatten()
        rows = new[0].unflatten(1, (CARRIERS, -1)).flatten(0, 1)[:, None]
        self.kv.write(place, self._slots(carriers), rows, rows)
        of_groups = self._from(place)[0][:, : (position + tokens) // size * size].unflatten(1, (-1, size))
        entries: Tensor = of_groups[:, :, size - CARRIERS :].flatten(2)
        return entries

    def _slots(self, positions: Tensor) -> Tensor:
        """Where they stand in KV memory."""
        assert isinstance(self.kv, PagedKV)
        size = self.kv.block_size
        return torch.from_numpy(self.span.blocks)[positions // size] * size + positions % size

    def _from(self, layer: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Of tokens of the row from this one on, those of this step included."""
        assert isinstance(self.kv, PagedKV)
        (own,) = contexts(self.kv, [self.span], self.kv.spec.layers, layer, start)
        return own


def in_order(traits: Traits) -> bool:
    """Does each layer attend once, one after the other?"""
    return [asked.layer for asked in traits.asked] == list(range(len(traits.kv.layers)))
