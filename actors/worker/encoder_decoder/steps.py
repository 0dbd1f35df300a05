"""Who computes one pass of a decoder with cross attention, for its caches and the attention function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from actorserve.kernels.cpu.paged_kv import Span

from ...model.memory.kv import KVSpec
from ..adapter.hooks import Call, Unfit, as_scale
from .rows_kv import AnyRowsKV


def behind(span: Span, block_size: int, place: int) -> Span:
    """The decoder's part of a span, whose positions count from its first token."""
    start = max(span.position, place)
    return Span(0, span.position + span.size - start, start - place, span.blocks[place // block_size :], span.one_run)


class Step:
    """Who computes one pass, for the caches and the attention function."""

    past = 0
    read_length = 1

    def __init__(self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor) -> None:
        self.kv, self.spec, self.slots = kv, spec, slots
        self.count = sum(layer is not None and layer.source is None for layer in spec.layers)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [1, heads, tokens, width]."""
        self.kv.write(layer, slots, *(part.transpose(1, 2).flatten(0, 1) for part in (keys, values)))

    def attend(self, call: Call) -> Tensor:
        raise Unfit("asks for attention that nobody has prepared")

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise Unfit("reads the encoder's answer where there is none")

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        raise Unfit("asks for keys of cross attention that are made in this pass")


class PromptStep(Step):
    """The decoder's first tokens of rows, with the encoder's answers, one behind the other."""

    def __init__(
        self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor, own: list[Span], read: Tensor, lengths: list[int]
    ) -> None:
        super().__init__(kv, spec, slots)
        self.read = read  # slots of the encoder's parts
        self.lengths, self.sizes = lengths, [span.size for span in own]  # of the answers, and of the decoder's tokens

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.read, keys, values)
        return keys, values


class FlatPrompt(PromptStep):
    """Attention is ours: what was stored of the decoder, and all that the encoder has answered to the row."""

    def __init__(
        self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor, own: list[Span], read: Tensor, lengths: list[int]
    ) -> None:
        super().__init__(kv, spec, slots, own, read, lengths)
        self.attention = kv.attention(own, spec.layers)
        self.given: dict[int, int] = {}  # layers by what they were given

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        self.given = {id(keys): layer}
        return keys, values

    def attend(self, call: Call) -> Tensor:
        layer = self.given.pop(id(call.keys), None)
        if layer is not None:
            return _flat(call, self.attention, layer)
        scale = as_scale(call.options.get("scaling"), call.queries.shape[3])
        keys, values = (self._by_row(part, self.lengths) for part in (call.keys, call.values))
        made = [
            scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1)
            for q, k, v in zip(self._by_row(call.queries, self.sizes), keys, values, strict=True)
        ]
        return torch.cat(made)[None]

    def _by_row(self, heads: Tensor, sizes: list[int]) -> Sequence[Tensor]:
        """Of [1, heads, positions, width] each row's; of rows that are as long as each other all at once."""
        if len({*self.sizes}) == len({*self.lengths}) == 1:
            return [heads[0].unflatten(1, (len(sizes), -1)).transpose(0, 1)]
        parts: Sequence[Tensor] = heads.split(sizes, 2)
        return parts


class SinglePrompt(PromptStep):
    """Of one row; attention is the model's own, over what it has just made."""

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        return keys, values


class DecodingStep(Step):
    """Rows whose cross attention is kept."""

    def __init__(self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class FlatRows(DecodingStep):
    """Attention is ours."""

    def __init__(self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots, own, cross)
        self.own = kv.attention(own, spec.layers)
        self.crossed = kv.attention(cross, spec.layers, crosses=True)
        layer = spec.layers[0]
        assert layer is not None
        marks = torch.empty(self.count, 1, layer.kv_heads, 1, layer.key_dim, device=slots.device)
        self.marks = list(marks.unbind(0))  # in place of keys that nobody but us reads
        self.layers: dict[int, int] = {}  # by what was handed out

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        self.layers = {id(keys): layer}
        return keys, values

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        self.layers = {id(self.marks[layer]): self.count + layer}
        return self.marks[layer], self.marks[layer]

    def attend(self, call: Call) -> Tensor:
        layer = self.layers.get(id(call.keys))
        if layer is None:
            raise Unfit("changes keys and values behind its cache")
        return _flat(call, self.own if layer < self.count else self.crossed, layer)


class SingleRow(DecodingStep):
    """Attention is the model's own, over gathered contexts."""

    def __init__(self, kv: AnyRowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots, own, cross)
        (self.span,), self.read = own, cross[0]
        self.blocks = kv.blocks_of(self.span), kv.blocks_of(self.read)
        self.past = self.span.position
        self.read_length = self.read.position + self.read.size
        self.latest: tuple[int, tuple[Tensor, Tensor]] | None = None  # keys and values are asked for apart

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        return self._gathered(self.span, self.blocks[0], layer)

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        if self.latest is None or self.latest[0] != layer:
            self.latest = layer, self._gathered(self.read, self.blocks[1], layer)
        return self.latest[1]

    def _gathered(self, span: Span, blocks: Any, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self.kv.contexts(span, blocks, self.spec.layers, layer)
        return keys[None], values[None]


def _flat(call: Call, attention: Any, layer: int) -> Tensor:
    queries = call.queries.transpose(1, 2)
    out = attention(layer, queries.flatten(0, 1).contiguous())
    result: Tensor = out.view(*queries.shape[:3], -1)
    return result
