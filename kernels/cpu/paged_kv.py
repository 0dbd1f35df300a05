"""The KV memory of all layers on a CPU: layers of one shape share a pool, and one block table serves all pools.

A pool's keys and values are one tensor `[layers, 2, kv_heads, slots, head_dim]` (0: keys, 1: values) where they are of
one width, else two, `[layers, kv_heads, slots, key_dim]` and `[layers, kv_heads, slots, value_dim]`: in this order a
run of neighbouring blocks is a matrix for each head that can be read where it lies. Where values are the first numbers
of the keys, there are the keys alone.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import KVSpec, LayerAttention

from .decode import NumpyKV, pays


class LatentPool(NamedTuple):
    """Keys whose first numbers are the values."""

    keys: Tensor  # [layers, kv_heads, slots, key_dim]
    value_dim: int


Pool = Tensor | tuple[Tensor, Tensor] | LatentPool
Layers = Sequence[LayerAttention | None]

TILE = 128  # queries that share one mask
FIRST_MASK = 1024  # keys that a table of masks has at first


class Span(NamedTuple):
    """The tokens of one sequence in a step: rows [first, first + size) of the flat batch, at `position` and on."""

    first: int
    size: int
    position: int
    blocks: np.ndarray  # int64, those that hold positions [0, position + size), in order; more may follow
    one_run: bool  # the blocks follow one another in the pool


class Gathered(NamedTuple):
    """Room for so many blocks of a layer, one after the other for each head."""

    memory: Tensor  # of keys, then of values
    keys: Tensor  # [kv_heads, blocks, block_size * key_dim]
    values: Tensor  # likewise; the keys, where values are a part of these


class PoolMemory:
    """Layers whose keys and values have one shape, and a place to gather blocks of one layer in."""

    def __init__(self, pool: Pool, block_size: int) -> None:
        self.values_in_keys = isinstance(pool, LatentPool)
        if isinstance(pool, LatentPool):
            keys, values = pool.keys, pool.keys[..., : pool.value_dim]
        else:
            keys, values = pool.unbind(1) if isinstance(pool, Tensor) else pool
        self.pool = pool
        self.block_size, self.dtype = block_size, keys.dtype
        self.kv_heads, self.slots, self.key_dim = keys.shape[1:]
        self.value_dim = values.shape[3]
        self.keys, self.values = keys.unbind(0), values.unbind(0)  # of each layer, [kv_heads, slots, width]
        self._joined = pool.unflatten(3, (-1, block_size)).flatten(4).unbind(0) if isinstance(pool, Tensor) else None
        own = (keys,) if self.values_in_keys else (keys, values)
        self._blocks = [part.unflatten(2, (-1, block_size)).flatten(3).unbind(0) for part in own]
        # numpy stores a few tokens two to ten times as quickly as index_copy_
        self._key_memory, self._value_memory = list(_as_array(keys)), list(_as_array(values))
        self._memory = list(_as_array(pool)) if isinstance(pool, Tensor) else None
        self.numpy = NumpyKV(keys, values, block_size, self.values_in_keys) if pays(keys) else None
        self._scratch, self._exact = keys.new_empty(0), torch.empty(0)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        where = slots.numpy()
        self._key_memory[layer][:, where] = _as_array(keys).transpose(1, 0, 2)
        if not self.values_in_keys:
            self._value_memory[layer][:, where] = _as_array(values).transpose(1, 0, 2)

    def write_joined(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        assert self._memory is not None, "keys and values have widths of their own"
        self._memory[layer][:, :, slots.numpy()] = _as_array(keys_values).transpose(1, 2, 0, 3)

    def scratch(self, blocks: int) -> Gathered:
        """The same memory at every call, if it is not larger than at the largest one before."""
        size = self._numbers(blocks)
        if self._scratch.numel() < size:
            self._scratch = self._scratch.new_empty(max(size, 2 * self._scratch.numel()))
        return self._room(self._scratch[:size], blocks)

    def exact(self, blocks: int) -> Gathered:
        """Memory for the same numbers in float32; what has that type already is its own."""
        if self.dtype == torch.float32:
            return self.scratch(blocks)
        size = self._numbers(blocks)
        if self._exact.numel() < size:
            self._exact = torch.empty(max(size, 2 * self._exact.numel()))
        return self._room(self._exact[:size], blocks)

    def gather(self, layer: int, index: Tensor, target: Gathered) -> None:
        """Blocks of a layer, in the order of `index`."""
        if self._joined is not None:
            both = target.memory.view(2, *target.keys.shape)
            torch.index_select(self._joined[layer], 2, index, out=both)
            return
        torch.index_select(self._blocks[0][layer], 1, index, out=target.keys)
        if not self.values_in_keys:
            torch.index_select(self._blocks[1][layer], 1, index, out=target.values)

    def of_tokens(self, gathered: Gathered) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, slots, width] of what was gathered."""
        heads = self.kv_heads
        keys = gathered.keys.view(heads, -1, self.key_dim)
        if self.values_in_keys:
            return keys, keys[..., : self.value_dim]
        return keys, gathered.values.view(heads, -1, self.value_dim)

    def fresh(self, blocks: int) -> Gathered:
        """Memory that no other call gets."""
        return self._room(self._scratch.new_empty(self._numbers(blocks)), blocks)

    def _numbers(self, blocks: int) -> int:
        width = self.key_dim + (0 if self.values_in_keys else self.value_dim)
        return self.kv_heads * blocks * self.block_size * width

    def _room(self, memory: Tensor, blocks: int) -> Gathered:
        of_keys = self.kv_heads * blocks * self.block_size * self.key_dim
        keys = memory[:of_keys].view(self.kv_heads, blocks, -1)
        if self.values_in_keys:
            return Gathered(memory, keys, keys)
        return Gathered(memory, keys, memory[of_keys:].view(self.kv_heads, blocks, -1))


class Kind(NamedTuple):
    """Layers that attend alike, over one pool: they are prepared together."""

    pool: PoolMemory
    rule: LayerAttention


Place = tuple[int, int]  # the number of a layer's kind, and the layer's index in that kind's pool


class Masks:
    """What to add to scores where the last query stands at the last key: 0, or -inf for not seen."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._tables: dict[int | None, Tensor] = {}

    def __call__(self, queries: int, keys: int, window: int | None) -> Tensor:
        """[queries, keys]. Seen or not depends on the distance alone, so every mask is a lower right corner of one."""
        table = self._tables.get(window)
        if table is None or table.shape[1] < keys:
            width = max(keys, FIRST_MASK if table is None else 2 * table.shape[1])
            distance = torch.arange(TILE)[:, None] - TILE + width - torch.arange(width)[None, :]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            table = torch.zeros(TILE, width, dtype=self.dtype).masked_fill_(hidden, float("-inf"))
            self._tables[window] = table
        return table[TILE - queries :, table.shape[1] - keys :]


class PagedKV:
    """The KV memory of all layers, with what reading it needs: which pool is a layer's, and masks."""

    def __init__(self, spec: KVSpec, pools: Sequence[Pool], block_size: int, aligned: bool = False) -> None:
        """`pools` as spec.pools() says; `aligned`: what is computed over it has the same bits in every step."""
        self.aligned = aligned
        self.spec = spec
        self.block_size = block_size
        self.pools = [PoolMemory(pool, block_size) for pool in pools]
        self.masks = Masks(self.pools[0].dtype if self.pools else torch.float32)
        self.masks_of_tiles: dict[tuple[int, int | None], tuple[int, Tensor]] = {}  # those of aligned.py
        self._where: list[tuple[PoolMemory, int] | None] = [None] * len(spec.layers)
        for pool, memory in zip(spec.pools(), self.pools, strict=True):
            for index, layer in enumerate(pool.layers):
                self._where[layer] = (memory, index)
        self._own = self._sort(spec.layers)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] at `slots`."""
        pool, index = self.at(layer)
        pool.write(index, slots, keys, values)

    def write_joined(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """The same of `keys_values` [tokens, 2, kv_heads, head_dim], which are of one width: in half the time."""
        pool, index = self.at(layer)
        pool.write_joined(index, slots, keys_values)

    def at(self, layer: int) -> tuple[PoolMemory, int]:
        """The pool of a layer that keeps keys and values, and the layer's index in it."""
        found = self._where[layer]
        assert found is not None, f"layer {layer} keeps no keys and values of its own"
        return found

    def kinds(self, layers: Layers) -> tuple[list[Kind], list[Place | None]]:
        """How these layers attend, and which does how."""
        return self._own if layers is self.spec.layers else self._sort(layers)

    def _sort(self, layers: Layers) -> tuple[list[Kind], list[Place | None]]:
        numbers: dict[LayerAttention, int] = {}  # which says the shape of its pool, too
        kinds: list[Kind] = []
        places: list[Place | None] = []
        for index, layer in enumerate(layers):
            if layer is None:
                places.append(None)
                continue
            pool, inner = self.at(index if layer.source is None else layer.source)
            rule = layer.alike()
            number = numbers.setdefault(rule, len(kinds))
            if number == len(kinds):
                kinds.append(Kind(pool, rule))
            places.append((number, inner))
        return kinds, places


def _as_array(values: Tensor) -> np.ndarray:
    """The same memory for numpy, which knows no bfloat16: as numbers of as many bits."""
    return (values if values.dtype == torch.float32 else values.view(torch.int16)).numpy()
