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

A soft cap is taken of all of a tile's scores, and slopes are added to all of them: where a number stands in the memory
that one operation goes through is then given by its position, too. Tiles do not cross the borders of chunks.

Keys and values of 16 or 8 bits are made float32 when they are gathered, and all is computed so; the result is rounded
once.

The kernels in C (native/attention.py) have the same bits by themselves: where they are to be had, they compute all.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention

from .attention import StepAttention, contexts
from .native.attention import NativeAttention
from .paged_kv import Kind, Layers, PagedKV, Span
from .pool_memory import Gathered, PoolMemory

ROWS = 4  # of one product, where a group of heads is not larger
WIDTH = 16  # keys that a tile's first and last one are multiples of


class _Tile(NamedTuple):
    """One tile of a span, as views of memory that is the same in all layers. Some of its queries may not be there."""

    queries: Tensor  # [kv_heads, positions * group, key_dim]
    keys: Tensor  # [kv_heads, key_dim, keys]
    scores: Tensor  # [kv_heads, positions * group, keys], as the shares
    near: Tensor  # the scores of those queries that are there, for keys of which some are not seen by all
    hidden: Tensor  # what is added to these: 0, or -inf
    before: Tensor  # scores of keys before the first that is seen, of another chunk
    distance: Tensor | None  # of keys from queries, [positions, 1, keys], where the layers have slopes
    own: Tensor  # all scores of those queries, [kv_heads, queries, group, keys]
    own_shares: Tensor
    shares: Tensor
    values: Tensor
    results: Tensor  # [kv_heads, positions * group, value_dim]


class _Seen(NamedTuple):
    """What the tiles of a span see in one kind of layers, gathered once a layer."""

    blocks: Tensor
    target: Gathered
    exact: Gathered  # in float32: the same memory, where the pool is
    unknown: tuple[Tensor, Tensor]  # the end of it, where nothing is known yet, or what is another sequence's
    tiles: list[_Tile]


class _Plan:
    """The spans of a step as one kind of layers sees them."""

    def __init__(self, kv: PagedKV, kind: Kind, spans: Sequence[Span]) -> None:
        self.pool, self.rule = kind
        self.block, self.masks = kv.block_size, kv.masks_of_tiles
        self.size = _tile_size(self.pool, self.rule)
        places: list[tuple[int, int]] = []
        firsts, tiles = [], 0
        for span in spans:
            before = tiles - span.position // self.size
            firsts.append(tiles)
            span_places = range(span.position, span.position + span.size)
            places += [(before + position // self.size, position % self.size) for position in span_places]
            tiles = places[-1][0] + 1
        self.tile, self.place = torch.tensor(places).unbind(1)
        shape = (tiles, self.pool.kv_heads, self.size, self.rule.heads // self.pool.kv_heads)
        self.queries = torch.zeros(*shape, self.pool.key_dim)
        self.results = torch.empty(*shape, self.pool.value_dim)
        longest = max(span.position + span.size for span in spans) + self.size + WIDTH
        most = -(-longest // self.block) + 1
        self.pool.scratch(most)  # once for all: views of it are kept
        self.pool.exact(most)
        count = -(-math.prod(shape[1:]) * longest // WIDTH) * WIDTH  # so that both begin in line
        self.scores, self.shares = torch.zeros(2, count).unbind(0)
        mask = self._mask()
        self.seen = [self._see(*those, mask) for those in zip(spans, firsts, strict=True)]
        heads = (self.pool.kv_heads, 1, shape[3], 1)
        self._heads = heads
        self._slopes = None if self.rule.slopes is None else torch.tensor(self.rule.slopes).view(heads)

    def _mask(self) -> tuple[int, Tensor]:
        """What to add to scores of a tile: 0, or -inf for not seen; and how many keys before the tile it begins."""
        window = self.rule.window
        known = self.masks.get((self.size, window))
        if known is not None:
            return known
        before = 0 if window is None else min(window + WIDTH, self.pool.slots)
        distance = torch.arange(self.size)[:, None] - torch.arange(-before, self.size + WIDTH)[None, :]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        made = before, torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        self.masks[self.size, window] = made
        return made

    def _see(self, span: Span, number: int, mask: tuple[int, Tensor]) -> _Seen:
        """The tiles of a span, the first of which is the step's tile `number`, and what they see."""
        size, block, end = self.size, self.block, span.position + span.size
        begins = range(span.position // size * size, end, size)
        lows = [self.rule.first_seen(begin) // WIDTH * WIDTH for begin in begins]
        ends = [-(-(begin + size) // WIDTH) * WIDTH for begin in begins]
        start = lows[0] // block * block
        blocks = torch.from_numpy(span.blocks[start // block : -(-end // block)])
        count = -(-(ends[-1] - start) // block)
        if count > len(blocks):  # so many more are read, and made zeros
            blocks = torch.cat([blocks, blocks[-1:].expand(count - len(blocks))])
        target, exact = self.pool.scratch(count), self.pool.exact(count)
        keys, values = self.pool.of_tokens(exact)
        tiles = []
        for index, (begin, low, high) in enumerate(zip(begins, lows, ends, strict=True)):
            there = slice(max(0, span.position - begin), min(size, end - begin))
            seen = slice(low - start, high - start)
            tiles.append(self._tile(number + index, there, begin, low, (keys[:, seen], values[:, seen]), mask))
        unknown = slice(end - start, ends[-1] - start)
        return _Seen(blocks, target, exact, (keys[:, unknown], values[:, unknown]), tiles)

    def _tile(
        self,
        number: int,
        there: slice,
        begin: int,
        low: int,
        seen: tuple[Tensor, Tensor],
        mask: tuple[int, Tensor],
    ) -> _Tile:
        """`there` are those of its queries that the step computes; it begins at one position, and `seen` at another."""
        _, kv_heads, size, group, _ = self.queries.shape
        keys = seen[0].shape[1]
        scores, shares = (
            memory[: kv_heads * size * group * keys].view(kv_heads, size, group, keys)
            for memory in (self.scores, self.shares)
        )
        reach, hidden = mask
        before = begin - low
        first = max(0, before - reach)  # what lies farther back all see
        hidden = hidden[there, None, first - before + reach : keys - before + reach]
        other_chunk = 0 if self.rule.chunk is None else max(0, begin // self.rule.chunk * self.rule.chunk - low)
        distance = None
        if self.rule.slopes is not None:
            distance = (torch.arange(-before, keys - before) - torch.arange(size)[:, None])[:, None]
        return _Tile(
            self.queries[number].flatten(1, 2),
            seen[0].transpose(1, 2),
            scores.view(kv_heads, size * group, keys),
            scores[:, there, :, first:],
            hidden,
            scores[:, there, :, :other_chunk],
            distance,
            scores[:, there],
            shares[:, there],
            shares.view(kv_heads, size * group, keys),
            seen[1],
            self.results[number].flatten(1, 2),
        )

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None) -> Tensor:
        """`layer` is one of the pool."""
        scaled = queries.float() * self.rule.scale
        self.queries[self.tile, :, self.place] = scaled.unflatten(1, (self.pool.kv_heads, -1))
        for seen in self.seen:
            self.pool.read(layer, seen.blocks, seen.target, seen.exact)
            for part in seen.unknown:
                part.zero_()  # numbers that are none would make none of the others
            for tile in seen.tiles:
                torch.bmm(tile.queries, tile.keys, out=tile.scores)
                self._score(tile)
                tile.own_shares.copy_(self._share(tile.own, sinks))
                torch.bmm(tile.shares, tile.values, out=tile.results)
        return self.results[self.tile, :, self.place].flatten(1, 2).to(queries.dtype)

    def _score(self, tile: _Tile) -> None:
        """What becomes of the products."""
        if self.rule.soft_cap is not None:
            tile.scores.div_(self.rule.soft_cap).tanh_().mul_(self.rule.soft_cap)
        if self._slopes is not None and tile.distance is not None:
            tile.scores.view(len(tile.scores), self.size, -1, tile.scores.shape[2]).add_(self._slopes * tile.distance)
        tile.near.add_(tile.hidden)
        if tile.before.shape[3]:
            tile.before.fill_(float("-inf"))

    def _share(self, scores: Tensor, sinks: Tensor | None) -> Tensor:
        if sinks is None:
            return torch.softmax(scores, -1)
        own = sinks.float().view(self._heads).expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, own], -1), -1)[..., :-1]


def _tile_size(pool: PoolMemory, rule: LayerAttention) -> int:
    """Positions of a tile: one that divides chunks, so that what a tile sees begins in one place."""
    most = max(1, ROWS * pool.kv_heads // rule.heads)
    return most if rule.chunk is None else next(size for size in range(most, 0, -1) if rule.chunk % size == 0)


class _NativePlan:
    """The same by the kernels in C."""

    def __init__(self, native: NativeAttention) -> None:
        self.native, self.rule = native, native.rule

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None) -> Tensor:
        out = queries.new_empty(*queries.shape[:2], self.rule.value_dim)
        self.native.attend(layer, queries, out, sinks)
        return out


def _plan(kv: PagedKV, kind: Kind, spans: Sequence[Span]) -> _Plan | _NativePlan:
    pool, rule = kind
    if pool.native is None or not NativeAttention.takes(rule):
        return _Plan(kv, kind, spans)
    return _NativePlan(NativeAttention(pool.native, rule, kv.block_size, spans))


class AlignedAttention:
    """Attention of one step's spans, as StepAttention, but not over what a model makes of its contexts."""

    def __init__(self, kv: PagedKV, spans: Sequence[Span], layers: Layers) -> None:
        """`layers` of the model; one step at a time may use the KV memory's scratch."""
        self.kv = kv
        self.spans = spans
        self.layers = layers
        kinds, self._places = kv.kinds(layers)
        self.plans = [_plan(kv, kind, spans) for kind in kinds]

    def advance(self) -> bool:
        """As StepAttention."""
        return all([isinstance(plan, _NativePlan) and plan.native.advance() for plan in self.plans])

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """The result [tokens, heads, value_dim], contiguous, for `queries` [tokens, heads, key_dim]."""
        place = self._places[layer]
        assert place is not None, f"layer {layer} attends to nothing"
        plan = self.plans[place[0]]
        assert plan.rule.sinks == (sinks is not None), f"layer {layer}: sinks where it has none, or none"
        return plan.attend(place[1], queries, sinks)

    @property
    def of_all_layers(self) -> NativeAttention | None:
        """As StepAttention."""
        (plan, *others) = self.plans
        return plan.native if isinstance(plan, _NativePlan) and not others and not plan.rule.sinks else None

    def contexts(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """What each span may see, all positions from 0 on."""
        return contexts(self.kv, self.spans, self.layers, layer)


AnyAttention = StepAttention | AlignedAttention
