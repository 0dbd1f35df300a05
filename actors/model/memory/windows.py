"""Which layers lie in which block table, where some of them see a window: tables of these let go of what is behind it
(scheduler/memory/windows.py).

A block is so many tokens of one table's layers, the same number of bytes in each table, so that one memory serves all.
The first table lets go of nothing, for by it prefixes are found: it has the layers that see everything, and some of the
others where there is room for them, or where no layer sees everything. How large a block is, is what makes the longest
sequence take least; where one table for all takes little more, there is one.

Where heads of layers differ (Gemma 4, MiMo-V2), each table has layers of one shape, and a block is packed: a row of its
tokens for each head of a layer, one behind the other, as many as go into it. What a table's layers do not fill is left.
Knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ...options.config import Config
from .kv import KVSpec, KVType, LayerAttention, PoolSpec

MARGIN = 16  # tokens more than a window's that are kept: aligned attention reads whole pieces, and masks what is hidden
WORTH = 0.95  # of the memory of one table: who takes more has one, whose blocks outlive a worker
Tables = tuple[tuple[int, ...], ...]


class Packing(NamedTuple):
    """Of a block, the numbers of a token's keys, and of its values, which lie in a memory of their own."""

    keys: int
    values: int

    def rows(self, pool: PoolSpec) -> int:
        """For how many heads of this shape there is room."""
        return self.keys // pool.key_dim


class WindowPlan(NamedTuple):
    """Which layers lie in which block table, of which the first keeps everything."""

    tables: Tables
    window: int  # tokens back that are kept for the others
    blocks: int  # of one of these tables that a sequence holds at most
    packing: Packing | None = None  # None: layers are alike, and a table has as many as the first

    def specs(self, kv: KVSpec) -> list[KVSpec]:
        """The same model, of each table its layers and those that read their keys and values."""
        return [msgspec.structs.replace(kv, layers=_only(kv.layers, set(table))) for table in self.tables]

    def block_bytes(self, kv: KVSpec, block_size: int, kind: KVType) -> int:
        """The size of a block, whichever table it is in."""
        if self.packing is None:
            return self.specs(kv)[0].block_bytes(block_size, kind)
        numbers = kind.keys.bytes_of(self.packing.keys) + kind.values.bytes_of(self.packing.values)
        scales = sum({self.packing.rows(pool) for pool in kv.pools()})  # each number of rows has its own
        return block_size * (numbers + scales * (kind.keys.scale_bytes + kind.values.scale_bytes))

    def table_of(self, kv: KVSpec) -> list[int]:
        """The table of each layer, or of the one whose keys and values it reads; 0 where it has none."""
        own = {layer: table for table, layers in enumerate(self.tables) for layer in layers}
        return [
            own.get(index if layer is None or layer.source is None else layer.source, 0)
            for index, layer in enumerate(kv.layers)
        ]


def plan_windows(kv: KVSpec, config: Config, sequence: int) -> WindowPlan | None:
    """The tables for sequences of up to so many blocks; None where one table for all layers takes no more memory."""
    pools = kv.pools()
    reaches = {layer: _reach(kv.layers, layer) for pool in pools for layer in pool.layers}
    seen = {layer: reach for layer, reach in sorted(reaches.items()) if reach is not None}
    if not seen or any(pool.values_in_keys for pool in pools):
        return None
    full = [layer for layer in reaches if layer not in seen]
    window = max(seen.values()) + MARGIN
    blocks = -(-(window + config.max_num_batched_tokens) // config.block_size) + 1
    packs = len(pools) > 1 or pools[0].key_dim != pools[0].value_dim
    divided = _packed(pools, full) if packs else _alike(full, list(seen))
    best, least = None, WORTH * sequence * sum(_numbers(pool) * len(pool.layers) for pool in pools)
    for tables, packing in divided:
        others = (len(tables) - 1) * blocks
        size = len(tables[0]) * _numbers(pools[0]) if packing is None else packing.keys
        taken = size * (sequence + others)
        if others <= sequence and taken < least:  # the KV map has room for twice the blocks of one table
            best, least = WindowPlan(tables, window, blocks, packing), taken
    return best


def windows_words(parts: Sequence[KVSpec], plans: Sequence[WindowPlan | None]) -> str:
    """For `check`: how many layers see a window, and what is kept for them; nothing, where none does."""
    own, seen, kept = 0, 0, 0
    for kv, plan in zip(parts, plans, strict=True):
        reaches = {layer: _reach(kv.layers, layer) for pool in kv.pools() for layer in pool.layers}
        own += len(reaches)
        seen += sum(reach is not None for reach in reaches.values())
        kept += 0 if plan is None else sum(map(len, plan.tables[1:]))
    if not seen:
        return ""
    tokens = [f"{kept} of them keep {plan.window:,} tokens" for plan in plans if plan is not None]
    return f"{seen} of {own} layers see a window, {tokens[0] if tokens else 'and keep all tokens'}"


def _numbers(pool: PoolSpec) -> int:
    """Of a token's keys in one layer."""
    return pool.kv_heads * pool.key_dim


def _alike(full: list[int], seen: list[int]) -> Iterator[tuple[Tables, None]]:
    """Layers of one shape, in tables of as many each, the last of which may have fewer."""
    for size in range(max(1, len(full)), len(full) + len(seen)):
        more = size - len(full)
        rest = seen[more:]
        others = [tuple(rest[at : at + size]) for at in range(0, len(rest), size)]
        yield ((*full, *seen[:more]), *others), None


def _packed(pools: Sequence[PoolSpec], full: list[int]) -> Iterator[tuple[Tables, Packing]]:
    """Those that see everything in one table, where they are of one shape, and others by their shapes."""
    of_full = [pool for pool in pools if set(pool.layers) & set(full)]
    keys, values = pools[0].key_dim, pools[0].value_dim
    if len(of_full) != 1 or any(pool.key_dim * values != pool.value_dim * keys for pool in pools):
        return
    least, step = len(full) * _numbers(of_full[0]), math.lcm(*(pool.key_dim for pool in pools))
    largest = max(_numbers(pool) for pool in pools)
    sizes = {
        -(-max(least, largest, count * _numbers(pool)) // step) * step for pool in pools for count in _counts(pool)
    }
    for size in sorted(sizes):
        others: list[tuple[int, ...]] = []
        for pool in pools:
            layers, each = [layer for layer in pool.layers if layer not in full], size // _numbers(pool)
            others += [tuple(layers[at : at + each]) for at in range(0, len(layers), each)]
        yield (tuple(full), *others), Packing(size, size * values // keys)


def _counts(pool: PoolSpec) -> range:
    return range(1, len(pool.layers) + 1)


def _reach(layers: Sequence[LayerAttention | None], index: int) -> int | None:
    """How many tokens back, itself included, is seen of this layer's keys by it and by those that read them."""
    readers = [layer for layer in (layers[index], *(x for x in layers if x and x.source == index)) if layer is not None]
    reaches = [
        min(number for number in (x.window, x.chunk) if number) if x.window or x.chunk else None for x in readers
    ]
    return None if None in reaches else max(reach for reach in reaches if reach is not None)


def _only(layers: Sequence[LayerAttention | None], wanted: set[int]) -> tuple[LayerAttention | None, ...]:
    return tuple(
        layer if layer is not None and (index if layer.source is None else layer.source) in wanted else None
        for index, layer in enumerate(layers)
    )
