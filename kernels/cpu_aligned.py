"""Attention on a CPU in float32 whose bits, for a token, follow from its position and what it sees: not from what else
the step computes, nor from how a prompt was cut into steps, nor from which blocks hold it.

Libraries multiply one row otherwise than four, and four otherwise than 128; sums differ in the last bits. So here a
product has the shape that a position gives it. Positions are divided into tiles; a query has its place in its
tile whether or not the step computes the others, for which there are zeros. A tile sees the keys from its first one's
window, or from 0, up to its own end, both on multiples of WIDTH: gathered into one place, with zeros behind the last.
The same call of the same library on numbers of the same shape then gives the same bits.

A tile is so large that the queries of a group of heads have ROWS rows in it: decoding computes that many for one.
Measured (one thread, AVX-512, µs for one layer's products of one row with 2, 8 and 16 rows): 8 heads of keys of 128
numbers and 128 tokens 44, 72, 135; 4 of 32 and 1,024 tokens 54, 65, 96.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .cpu_attention import PagedKV, Span, StepAttention

ROWS = 8  # of one product, where a group of heads is not larger
WIDTH = 64  # keys that a tile's first and last one are multiples of


class _Tile(NamedTuple):
    """One tile of a span: what it sees lies at [first, first + keys) of what is gathered."""

    number: int  # in the memory for queries and results
    first: int
    keys: int
    own: int  # its first position, from the first key that it sees


class _Seen(NamedTuple):
    """What the tiles of a span see through one window, gathered once a layer."""

    blocks: Tensor
    end: int  # behind it nothing is known yet, or it is another sequence's
    width: int
    tiles: list[_Tile]


class AlignedAttention:
    """Attention of one step's spans, as StepAttention."""

    def __init__(
        self, kv: PagedKV, spans: Sequence[Span], windows: Sequence[int | None], heads: int, scale: float
    ) -> None:
        """`windows` by layer; `heads` of queries; one step at a time may use the KV memory's scratch."""
        kv_heads, head_dim = kv.pool.shape[2], kv.pool.shape[4]
        self.kv = kv
        self.windows = windows
        self.scale = scale
        self.size = max(1, ROWS * kv_heads // heads)  # positions of a tile
        group = heads // kv_heads
        places: list[tuple[int, int]] = []
        first_tiles, tiles = [], 0
        for span in spans:
            first = span.position // self.size
            first_tiles.append(tiles)
            for position in range(span.position, span.position + span.size):
                places.append((tiles + position // self.size - first, position % self.size))
            tiles = places[-1][0] + 1
        self.tile, self.place = torch.tensor(places).unbind(1)
        self.queries = kv.pool.new_zeros(tiles, kv_heads, self.size, group, head_dim)
        self.results = torch.empty_like(self.queries)
        self.seen = {
            window: [self._seen(span, first, window) for span, first in zip(spans, first_tiles, strict=True)]
            for window in set(windows)
        }
        self.masks = {window: self._mask(window) for window in self.seen}
        most = max(len(seen.blocks) for some in self.seen.values() for seen in some)
        kv.scratch(most)  # once for all

    def _seen(self, span: Span, tile: int, window: int | None) -> _Seen:
        """The tiles of a span, the first of which is the step's number `tile`, and what they see."""
        size, block = self.size, self.kv.block_size
        begins = range(span.position // size * size, span.position + span.size, size)
        lows = [0 if window is None else max(0, begin - window + 1) // WIDTH * WIDTH for begin in begins]
        ends = [-(-(begin + size) // WIDTH) * WIDTH for begin in begins]
        start = lows[0] // block * block
        count = -(-(ends[-1] - start) // block)
        known = -(-(span.position + span.size) // block)
        blocks = torch.from_numpy(span.blocks[start // block : known].copy())
        more = torch.full((max(0, count - len(blocks)),), int(blocks[-1]))  # read, and then made zeros
        tiles = [
            _Tile(tile + number, low - start, end - low, begin - low)
            for number, (begin, low, end) in enumerate(zip(begins, lows, ends, strict=True))
        ]
        return _Seen(torch.cat([blocks, more])[:count], span.position + span.size - start, ends[-1] - start, tiles)

    def _mask(self, window: int | None) -> tuple[int, Tensor]:
        """What to add to scores of a tile: 0, or -inf for not seen; and how many keys before the tile it begins."""
        before = 0 if window is None else min(window + WIDTH, self.kv.pool.shape[3])
        distance = torch.arange(self.size)[:, None] - torch.arange(-before, self.size + WIDTH)[None, :]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        return before, torch.zeros(hidden.shape, dtype=self.kv.pool.dtype).masked_fill_(hidden, float("-inf"))

    def advance(self) -> bool:
        """The same spans a position further on: another object has to be made for them."""
        return False

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """The result for `queries` [tokens, heads, head_dim], in the same shape, contiguous."""
        window = self.windows[layer]
        _, kv_heads, size, group, head_dim = self.queries.shape
        self.queries[self.tile, :, self.place] = (queries * self.scale).view(-1, kv_heads, group, head_dim)
        rows, results = (part.view(-1, kv_heads, size * group, head_dim) for part in (self.queries, self.results))
        for seen in self.seen[window]:
            target = self.kv.scratch(len(seen.blocks))
            torch.index_select(self.kv.blocks[layer], 2, seen.blocks, out=target)
            keys, values = target.view(2, kv_heads, -1, head_dim).unbind(0)
            if seen.width > seen.end:  # numbers that are none would make none of the others
                target.view(2, kv_heads, -1, head_dim)[:, :, seen.end : seen.width] = 0
            for tile in seen.tiles:
                own = keys.narrow(1, tile.first, tile.keys)
                scores = torch.bmm(rows[tile.number], own.transpose(1, 2))
                self._hide(scores.view(kv_heads, size, group, tile.keys), tile, window)
                shares = torch.softmax(scores, -1)
                torch.bmm(shares, values.narrow(1, tile.first, tile.keys), out=results[tile.number])
        return self.results[self.tile, :, self.place].view(queries.shape)

    def _hide(self, scores: Tensor, tile: _Tile, window: int | None) -> None:
        """-inf for what a query does not see."""
        before, mask = self.masks[window]
        if before < tile.own:  # what lies farther back all see
            scores = scores[..., tile.own - before :]
        first = max(0, before - tile.own)
        scores.add_(mask[:, None, first : first + scores.shape[-1]])


AnyAttention = StepAttention | AlignedAttention
