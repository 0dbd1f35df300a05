"""Attention over paged KV memory with plain torch operations, for machines without a GPU.

The pool is `[layers, 2, kv_heads, slots, head_dim]` (0: keys, 1: values): in this order a run of neighbouring blocks is
a matrix for each head that can be read where it lies. One step's attention is prepared once (StepAttention) and called
once a layer. A query at position p sees the keys of positions (p - window, p]; a window of None sees them all:
    out = softmax(scale · q · Kᵀ) · V, heads of queries grouped over heads of keys.

Ways through it, as measured (one thread of a Zen 4, float32, µs for one row of decoding in one layer):
                                       8 + 4 heads of 32                 16 + 8 heads of 128
    rows x context                     8 x 256   32 x 256   32 x 1024    8 x 256   32 x 1024
    one run, in place                  21        25         83           302       1280
    blocks of 32, row gathered         30        43         173          241       1342
    blocks of 32, product a run        75        100        449          364       1890
    blocks of 32, batch gathered       23        33         232          417       2500
So a sequence in one run is read in place, any other is gathered, one at a time into memory that stays in the cache.
Decoding in float32 takes two products and a softmax for each sequence: numpy's where that is quicker (decode.py).
Chunks of prompts, and 16-bit types (5.7 against 9.0 ms for 32 rows of 100-300 at 16 + 8 heads of 128), go through
scaled_dot_product_attention, in tiles of 128 queries that skip what lies in the future.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .decode import Decoding, NumpyKV, Row, pays

TILE = 128  # queries that share one mask
FIRST_MASK = 1024  # keys that a table of masks has at first


class Span(NamedTuple):
    """The tokens of one sequence in a step: rows [first, first + size) of the flat batch, at `position` and on."""

    first: int
    size: int
    position: int
    blocks: np.ndarray  # int64, those that hold positions [0, position + size), in order; more may follow
    one_run: bool  # the blocks follow one another in the pool


class PagedKV:
    """The KV memory of all layers, with what reading it needs: a place to gather in, and masks."""

    def __init__(self, pool: Tensor, block_size: int, aligned: bool = False) -> None:
        """`aligned`: what is computed over it has the same bits in every step (aligned.py)."""
        layers, _, heads, slots, head_dim = pool.shape
        self.aligned = aligned
        self.pool = pool
        self.block_size = block_size
        self._memory = list(_as_array(pool))  # numpy stores a few tokens two to ten times as quickly as index_copy_
        self.blocks = pool.view(layers, 2, heads, slots // block_size, block_size * head_dim).unbind(0)
        self.numpy = NumpyKV(pool, block_size) if pays(pool) else None
        self._scratch, self._exact = pool.new_empty(0), torch.empty(0)
        self._masks: dict[int | None, Tensor] = {}
        self.masks_of_tiles: dict[tuple[int, int | None], tuple[int, Tensor]] = {}  # those of aligned.py

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store `keys_values` [tokens, 2, kv_heads, head_dim] at `slots`."""
        self._memory[layer][:, :, slots.numpy()] = _as_array(keys_values).transpose(1, 2, 0, 3)

    def scratch(self, blocks: int) -> Tensor:
        """[2, kv_heads, blocks, block_size * head_dim], the same memory at every call."""
        shape = (2, self.pool.shape[2], blocks, self.block_size * self.pool.shape[4])
        size = shape[0] * shape[1] * shape[2] * shape[3]
        if self._scratch.numel() < size:
            self._scratch = self.pool.new_empty(max(size, 2 * self._scratch.numel()))
        return self._scratch[:size].view(shape)

    def exact(self, gathered: Tensor) -> Tensor:
        """Memory for the same numbers in float32, the same at every call; what has that type already is its own."""
        if gathered.dtype == torch.float32:
            return gathered
        if self._exact.numel() < gathered.numel():
            self._exact = torch.empty(max(gathered.numel(), 2 * self._exact.numel()))
        return self._exact[: gathered.numel()].view(gathered.shape)

    def mask(self, queries: int, keys: int, window: int | None) -> Tensor:
        """What to add to scores [queries, keys] where the last query stands at the last key: 0, or -inf for not seen.

        Seen or not depends on the distance alone, so that every mask is the lower right corner of one table.
        """
        table = self._masks.get(window)
        if table is None or table.shape[1] < keys:
            width = max(keys, FIRST_MASK if table is None else 2 * table.shape[1])
            distance = torch.arange(TILE)[:, None] - TILE + width - torch.arange(width)[None, :]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            table = torch.zeros(TILE, width, dtype=self.pool.dtype).masked_fill_(hidden, float("-inf"))
            self._masks[window] = table
        return table[TILE - queries :, table.shape[1] - keys :]


def _as_array(values: Tensor) -> np.ndarray:
    """The same memory for numpy, which knows no bfloat16: as numbers of as many bits."""
    return (values if values.dtype == torch.float32 else values.view(torch.int16)).numpy()


class _Context:
    """What one span sees through one window: keys and values of positions [start, span.position + span.size)."""

    def __init__(self, kv: PagedKV, span: Span, window: int | None) -> None:
        self.span = span
        self.start = 0 if window is None else max(0, span.position - window + 1)
        size = span.position + span.size - self.start
        first, offset = divmod(self.start, kv.block_size)
        if span.one_run:
            slot = int(span.blocks[first]) * kv.block_size + offset
            self.keys = kv.pool.select(1, 0).narrow(2, slot, size).unbind(0)
            self.values = kv.pool.select(1, 1).narrow(2, slot, size).unbind(0)
            self.sources: Sequence[Tensor] = ()
            return
        count = -(-(offset + size) // kv.block_size)
        self.sources = kv.blocks
        self.index = torch.from_numpy(span.blocks[first : first + count])
        self.target = kv.scratch(count)
        keys, values = self.target.view(2, self.target.shape[1], -1, kv.pool.shape[4]).unbind(0)
        self.gathered = keys.narrow(1, offset, size), values.narrow(1, offset, size)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values), both [kv_heads, tokens, head_dim], good until the next context is read."""
        if not self.sources:
            return self.keys[layer], self.values[layer]
        torch.index_select(self.sources[layer], 2, self.index, out=self.target)
        return self.gathered


def _blocks(kv: PagedKV, span: Span) -> int:
    return -(-(span.position + span.size) // kv.block_size)


def _row(kv: PagedKV, span: Span, window: int | None) -> Row:
    """A span of one token as numpy's products want it."""
    start = 0 if window is None else max(0, span.position - window + 1)
    first, offset = divmod(start, kv.block_size)
    size = span.position + 1 - start
    if span.one_run:
        return Row(span.first, size, int(span.blocks[first]) * kv.block_size + offset, None, 0)
    return Row(span.first, size, 0, torch.from_numpy(span.blocks[first : _blocks(kv, span)]), offset)


class StepAttention:
    """Attention of one step's spans; call it with each layer's queries when its keys and values are written."""

    def __init__(
        self, kv: PagedKV, spans: Sequence[Span], windows: Sequence[int | None], heads: int, scale: float
    ) -> None:
        """`windows` by layer; `heads` of queries; one step at a time may use the KV memory's scratch."""
        self.kv = kv
        self.windows = windows
        self.scale = scale
        exact = kv.pool.dtype == torch.float32
        alone = [span for span in spans if exact and span.size == 1]
        others = [span for span in spans if not exact or span.size > 1]
        self.by_numpy: dict[int | None, Decoding] = {}
        if kv.numpy is not None and alone:
            for window in set(windows):
                rows = [_row(kv, span, window) for span in alone]
                self.by_numpy[window] = Decoding(kv.numpy, rows, window, heads // kv.pool.shape[2], scale)
            alone = []
        kv.scratch(max((_blocks(kv, span) for span in alone + others if not span.one_run), default=0))  # once for all
        self.decoding = {window: [_Context(kv, span, window) for span in alone] for window in set(windows)}
        self.chunks = {window: [_Context(kv, span, window) for span in others] for window in set(windows)}

    def advance(self) -> bool:
        """The same spans, of one token each, a position further on. False: another object has to be made for them."""
        if not self.by_numpy or any(self.chunks.values()):
            return False
        return all([decoding.advance() for decoding in self.by_numpy.values()])

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """The result for `queries` [tokens, heads, head_dim], in the same shape, contiguous."""
        out = queries.new_empty(queries.shape)
        window = self.windows[layer]
        if self.by_numpy:
            self.by_numpy[window].attend(layer, queries, out)
        if contexts := self.decoding[window]:
            self._decode(layer, contexts, queries, out)
        for context in self.chunks[window]:
            self._attend(layer, context, queries, out)
        return out

    def _decode(self, layer: int, contexts: list[_Context], queries: Tensor, out: Tensor) -> None:
        """One query a sequence: the heads of a group are the rows of one product for each head of keys."""
        grouped = (queries.shape[0], self.kv.pool.shape[2], -1, queries.shape[2])
        scaled, results = (queries * self.scale).view(grouped).unbind(0), out.view(grouped).unbind(0)
        for context in contexts:
            row = context.span.first
            keys, values = context.read(layer)
            shares = torch.softmax(torch.bmm(scaled[row], keys.transpose(1, 2)), -1)
            torch.bmm(shares, values, out=results[row])

    def _attend(self, layer: int, context: _Context, queries: Tensor, out: Tensor) -> None:
        """Queries in tiles, each over the keys from its first one's window to its last one."""
        first, count, position, _, _ = context.span
        window = self.windows[layer]
        keys, values = (part[None] for part in context.read(layer))
        for begin in range(0, count, TILE):
            size = min(TILE, count - begin)
            low = 0 if window is None else max(0, position + begin - window + 1 - context.start)
            seen = position + begin + size - context.start - low
            result = F.scaled_dot_product_attention(
                queries[None, first + begin : first + begin + size].transpose(1, 2),
                keys.narrow(2, low, seen),
                values.narrow(2, low, seen),
                attn_mask=self.kv.mask(size, seen, window)[None, None] if size > 1 else None,
                scale=self.scale,
                enable_gqa=True,
            )
            out[first + begin : first + begin + size] = result[0].transpose(0, 1)
