"""The KV memory of all layers on a CPU: layers of one shape share a pool (pool_memory.py), and one block table serves
all pools.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import KVSpec, LayerAttention

from .native.library import Library
from .pool_memory import Pool, PoolMemory

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


class Kind(NamedTuple):
    """Layers that attend alike, over one pool: they are prepared together."""

    pool: PoolMemory
    rule: LayerAttention


Place = tuple[int, int]  # the number of a layer's kind, and the layer's index in that kind's pool


class Masks:
    """What to add to scores where the last query stands at the last key: 0, or -inf for not seen."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def __call__(self, queries: int, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[queries, keys]. Seen or not depends on the distance alone, so every mask is a lower right corner of one."""
        table = self._tables.get((window, dtype))
        if table is None or table.shape[1] < keys:
            width = max(keys, FIRST_MASK if table is None else 2 * table.shape[1])
            distance = torch.arange(TILE)[:, None] - TILE + width - torch.arange(width)[None, :]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            table = torch.zeros(TILE, width, dtype=dtype).masked_fill_(hidden, float("-inf"))
            self._tables[window, dtype] = table
        return table[TILE - queries :, table.shape[1] - keys :]


class PagedKV:
    """The KV memory of all layers, with what reading it needs: which pool is a layer's, and masks."""

    def __init__(
        self,
        spec: KVSpec,
        pools: Sequence[Pool],
        block_size: int,
        aligned: bool = False,
        dtype: torch.dtype | None = None,
        library: Library | None = None,
        narrow: bool = False,
    ) -> None:
        """`pools` as spec.pools() says; `aligned`: what is computed over it has the same bits in every step. `dtype` is
        the model's, None: that of the pools; `library`: the kernels in C that are used where they can be; `narrow`:
        products of the model's are of the pools' type, and those of chunks of prompts may be, too."""
        self.aligned, self.narrow = aligned, narrow
        self.spec = spec
        self.block_size = block_size
        self.pools = [PoolMemory(pool, block_size, dtype, library) for pool in pools]
        self.masks = Masks()
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
