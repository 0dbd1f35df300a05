"""Attention on a CPU whose bits, for a token, follow from its position and what it sees: not from what else
the step computes, nor from how a prompt was cut into steps, nor from which blocks hold it.

Libraries multiply one row otherwise than four, and four otherwise than 128; sums differ in the last bits. So here a
product has the shape that a position gives it. Positions are divided into tiles; a query has its place in its
tile whether or not the step computes the others, for which there are zeros. A tile sees the keys from its first one's
window, or from 0, up to its own end, both on multiples of WIDTH: gathered into one place, with zeros behind the last.
The same call of the same library on numbers of the same shape then gives the same bits.

A tile is so large that the queries of a group of heads have ROWS rows in it: decoding computes that many for one.
Measured against StepAttention (4 layers of Qwen3-0.6B's shape with weights of 8 bits, one thread, the two in turns in
one run on a busy machine, a whole step, and 512 tokens of a prompt):
            1 row, 128 tokens   8 rows, 128   1 row, 1,024   prompt, from 0   prompt, from 512
    4 rows              1.09          1.13           1.20             1.19               1.53
    8 rows              1.11          1.19           1.28             1.10               1.41

Keys and values of 16 bits are made float32 when they are gathered, and all is computed so; the result is rounded once.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import PagedKV, Span, StepAttention

ROWS = 4  # of one product, where a group of heads is not larger
WIDTH = 16  # keys that a tile's first and last one are multiples of


class _Tile(NamedTuple):
    """One tile of a span, as views of memory that is the same in all layers. Some of its queries may not be there."""

    queries: Tensor  # [kv_heads, positions * group, head_dim], as the results
    keys: Tensor  # [kv_heads, head_dim, keys]
    scores: Tensor  # [kv_heads, positions * group, keys], as the shares
    near: Tensor  # the scores of those queries that are there, for keys of which some are not seen by all
    hidden: Tensor  # what is added to these: 0, or -inf
    own: Tensor  # all scores of those queries, [kv_heads, queries, group, keys]
    own_shares: Tensor
    shares: Tensor
    values: Tensor
    results: Tensor


class _Seen(NamedTuple):
    """What the tiles of a span see through one window, gathered once a layer."""

    blocks: Tensor
    target: Tensor
    exact: Tensor  # in float32: the same memory, where the pool is
    unknown: Tensor  # the end of it, where nothing is known yet, or what is another sequence's
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
        places: list[tuple[int, int]] = []
        firsts, tiles = [], 0
        for span in spans:
            before = tiles - span.position // self.size
            firsts.append(tiles)
            span_places = range(span.position, span.position + span.size)
            places += [(before + position // self.size, position % self.size) for position in span_places]
            tiles = places[-1][0] + 1
        self.tile, self.place = torch.tensor(places).unbind(1)
        self.queries = torch.zeros(tiles, kv_heads, self.size, heads // kv_heads, head_dim)
        self.results = torch.empty_like(self.queries)
        longest = max(span.position + span.size for span in spans) + self.size + WIDTH
        kv.exact(kv.scratch(-(-longest // kv.block_size) + 1))  # once for all: views of it are kept
        count = -(-self.queries[0, ..., 0].numel() * longest // WIDTH) * WIDTH  # so that both begin in line
        self.scores, self.shares = torch.zeros(2, count).unbind(0)
        self.seen: dict[int | None, list[_Seen]] = {}
        for window in set(windows):
            mask = self._mask(window)
            self.seen[window] = [self._see(*those, window, mask) for those in zip(spans, firsts, strict=True)]

    def _mask(self, window: int | None) -> tuple[int, Tensor]:
        """What to add to scores of a tile: 0, or -inf for not seen; and how many keys before the tile it begins."""
        known = self.kv.masks_of_tiles.get((self.size, window))
        if known is not None:
            return known
        before = 0 if window is None else min(window + WIDTH, self.kv.pool.shape[3])
        distance = torch.arange(self.size)[:, None] - torch.arange(-before, self.size + WIDTH)[None, :]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        made = before, torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        self.kv.masks_of_tiles[self.size, window] = made
        return made

    def _see(self, span: Span, number: int, window: int | None, mask: tuple[int, Tensor]) -> _Seen:
        """The tiles of a span, the first of which is the step's tile `number`, and what they see."""
        size, block, end = self.size, self.kv.block_size, span.position + span.size
        begins = range(span.position // size * size, end, size)
        lows = [0 if window is None else max(0, begin - window + 1) // WIDTH * WIDTH for begin in begins]
        ends = [-(-(begin + size) // WIDTH) * WIDTH for begin in begins]
        start = lows[0] // block * block
        blocks = torch.from_numpy(span.blocks[start // block : -(-end // block)])
        count = -(-(ends[-1] - start) // block)
        if count > len(blocks):  # so many more are read, and made zeros
            blocks = torch.cat([blocks, blocks[-1:].expand(count - len(blocks))])
        target = self.kv.scratch(count)
        exact = self.kv.exact(target)
        flat = exact.view(2, target.shape[1], count * block, self.kv.pool.shape[4])
        tiles = []
        for index, (begin, low, high) in enumerate(zip(begins, lows, ends, strict=True)):
            there = slice(max(0, span.position - begin), min(size, end - begin))
            seen = flat[:, :, low - start : high - start]
            tiles.append(self._tile(number + index, there, seen, begin - low, mask))
        return _Seen(blocks, target, exact, flat[:, :, end - start : ends[-1] - start], tiles)

    def _tile(self, number: int, there: slice, seen: Tensor, before: int, mask: tuple[int, Tensor]) -> _Tile:
        """`there` are those of its queries that the step computes, `before` the keys of `seen` before its first one."""
        _, kv_heads, size, group, head_dim = self.queries.shape
        keys = seen.shape[2]
        scores, shares = (
            memory[: kv_heads * size * group * keys].view(kv_heads, size, group, keys)
            for memory in (self.scores, self.shares)
        )
        reach, hidden = mask
        first = max(0, before - reach)  # what lies farther back all see
        hidden = hidden[there, None, first - before + reach : keys - before + reach]
        return _Tile(
            self.queries[number].view(kv_heads, size * group, head_dim),
            seen[0].transpose(1, 2),
            scores.view(kv_heads, size * group, keys),
            scores[:, there, :, first:],
            hidden,
            scores[:, there],
            shares[:, there],
            shares.view(kv_heads, size * group, keys),
            seen[1],
            self.results[number].view(kv_heads, size * group, head_dim),
        )

    def advance(self) -> bool:
        """The same spans a position further on: another object has to be made for them."""
        return False

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """The result for `queries` [tokens, heads, head_dim], in the same shape, contiguous."""
        _, kv_heads, _, group, head_dim = self.queries.shape
        scaled = queries.float() * self.scale
        self.queries[self.tile, :, self.place] = scaled.view(-1, kv_heads, group, head_dim)
        for seen in self.seen[self.windows[layer]]:
            torch.index_select(self.kv.blocks[layer], 2, seen.blocks, out=seen.target)
            if seen.exact is not seen.target:
                seen.exact.copy_(seen.target)
            seen.unknown.zero_()  # numbers that are none would make none of the others
            for tile in seen.tiles:
                torch.bmm(tile.queries, tile.keys, out=tile.scores)
                tile.near.add_(tile.hidden)
                tile.own_shares.copy_(torch.softmax(tile.own, -1))
                torch.bmm(tile.shares, tile.values, out=tile.results)
        return self.results[self.tile, :, self.place].view(queries.shape).to(queries.dtype)


AnyAttention = StepAttention | AlignedAttention
