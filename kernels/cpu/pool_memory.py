"""The memory of one pool: layers whose keys and values have one shape (paged_kv.py has all pools of a model).

Keys and values are one tensor `[layers, 2, kv_heads, slots, head_dim]` (0: keys, 1: values) where they are of one
width, else two, `[layers, kv_heads, slots, key_dim]` and `[layers, kv_heads, slots, value_dim]`: in this order a run of
neighbouring blocks is a matrix for each head that can be read where it lies. Where values are the first numbers of the
keys, there are the keys alone.

They may be of another type than the model computes in (`--kv-cache-dtype`): they are rounded when they are written, and
read as float32. float16 holds what is beyond its range as its largest number. Of 8 bits and fewer there are codes
(kv_formats.py), and a scale for each token and head, keys and values apart, in a tensor of its own; codes of keys and
of values are one tensor where they are kept alike.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import KV_TYPES, KVType

from .decode import NumpyKV, gather_blocks, pays
from .kv_formats import quantise, restore, width_of
from .native.attention import Kept, NativePool
from .native.library import Library


class LatentPool(NamedTuple):
    """Keys whose first numbers are the values."""

    keys: Tensor  # [layers, kv_heads, slots, key_dim]
    value_dim: int


@dataclass(frozen=True)
class QuantisedPool:
    """Keys and values of 8 bits and fewer."""

    codes: Tensor | tuple[Tensor, Tensor]
    scales: Tensor  # float32 [layers, 2, kv_heads, slots]
    kind: KVType = KV_TYPES["int8"]

    def part(self, layers: int) -> QuantisedPool:
        """Of the first layers."""
        codes = self.codes
        some = codes[:layers] if isinstance(codes, Tensor) else (codes[0][:layers], codes[1][:layers])
        return QuantisedPool(some, self.scales[:layers], self.kind)


Pool = Tensor | tuple[Tensor, Tensor] | LatentPool | QuantisedPool

LARGEST_FLOAT16 = 65504.0


class Gathered(NamedTuple):
    """Room for so many blocks of a layer, one after the other for each head."""

    memory: Tensor  # of keys, then of values
    keys: Tensor  # [kv_heads, blocks, block_size * key_dim]
    values: Tensor  # likewise; the keys, where values are a part of these


class PoolMemory:
    """Layers whose keys and values have one shape, and a place to gather blocks of one layer in."""

    def __init__(
        self, pool: Pool, block_size: int, dtype: torch.dtype | None = None, library: Library | None = None
    ) -> None:
        """`dtype` is the model's, None: the pool's; `library`: by which this is written, and may be attended to."""
        codes = pool.codes if isinstance(pool, QuantisedPool) else pool
        self.scales = pool.scales if isinstance(pool, QuantisedPool) else None
        self.values_in_keys = isinstance(codes, LatentPool)
        if isinstance(codes, LatentPool):
            keys, values = codes.keys, codes.keys[..., : codes.value_dim]
        else:
            keys, values = codes.unbind(1) if isinstance(codes, Tensor) else codes
        self.pool = pool
        self.block_size, self.dtype = block_size, keys.dtype
        self.model_dtype = dtype or keys.dtype
        self.widens = self.model_dtype != self.dtype  # what is read is made float32
        self.kv_heads, self.slots = keys.shape[1:3]
        self._rows = (keys.shape[3], values.shape[3])  # of the memory's type
        self.formats = (pool.kind.keys, pool.kind.values) if isinstance(pool, QuantisedPool) else None
        self.key_dim, self.value_dim = self._rows
        if self.formats is not None:
            self.key_dim, self.value_dim = map(width_of, self.formats, self._rows)
        self.keys, self.values = keys.unbind(0), values.unbind(0)  # of each layer, [kv_heads, slots, width]
        joined = isinstance(codes, Tensor)
        self._joined = codes.unflatten(3, (-1, block_size)).flatten(4).unbind(0) if isinstance(codes, Tensor) else None
        own = (keys,) if self.values_in_keys else (keys, values)
        self._blocks = [part.unflatten(2, (-1, block_size)).flatten(3).unbind(0) for part in own]
        # numpy stores a few tokens two to ten times as quickly as index_copy_
        self._part_memory = [list(_as_array(part)) for part in own]
        self._memory = list(_as_array(codes)) if isinstance(codes, Tensor) else None
        self._scale_memory = None if self.scales is None else list(self.scales.numpy())
        self.native: NativePool | None = None
        names = [kept.name for kept in self.formats] if self.formats else [str(keys.dtype).removeprefix("torch.")] * 2
        if library is not None and not self.values_in_keys and NativePool.takes(names, self.key_dim, self.value_dim):
            kept = (Kept(names[0], self.key_dim), Kept(names[1], self.value_dim))
            self.native = NativePool(library, self.keys, self.values, self.scales, joined, kept)
        by_numpy = self.native is None and pays(keys)
        self.numpy = NumpyKV(keys, values, block_size, self.values_in_keys) if by_numpy else None
        self._scratch, self._exact = keys.new_empty(0), torch.empty(0)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        if self.native is not None:
            self.native.store(layer, slots, keys, values)
            return
        where = slots.numpy()
        for index, (part, memory) in enumerate(zip((keys, values), self._part_memory, strict=False)):
            codes, scales = self._rounded(part, index)
            memory[layer][:, where] = _as_array(codes).transpose(1, 0, 2)
            if self._scale_memory is not None and scales is not None:
                self._scale_memory[layer][index][:, where] = scales.numpy().T

    def write_joined(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        if self.native is not None:
            self.native.store_joined(layer, slots, keys_values)
            return
        if self._memory is None:
            self.write(layer, slots, *keys_values.unbind(1))
            return
        where = slots.numpy()
        codes, scales = self._rounded(keys_values, 0)
        self._memory[layer][:, :, where] = _as_array(codes).transpose(1, 2, 0, 3)
        if self._scale_memory is not None and scales is not None:
            self._scale_memory[layer][:, :, where] = scales.numpy().transpose(1, 2, 0)

    def _rounded(self, values: Tensor, index: int) -> tuple[Tensor, Tensor | None]:
        """As keys (0) or values (1) are kept, and the scales of codes."""
        if self.formats is not None:
            return quantise(values, self.formats[index].name)
        if self.dtype == torch.float16 and values.dtype != torch.float16:
            values = values.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16)
        return values.to(self.dtype), None

    def scratch(self, blocks: int) -> Gathered:
        """The same memory at every call, if it is not larger than at the largest one before."""
        size = self._numbers(blocks, self._rows)
        if self._scratch.numel() < size:
            self._scratch = self._scratch.new_empty(max(size, 2 * self._scratch.numel()))
        return self._room(self._scratch[:size], blocks, self._rows)

    def exact(self, blocks: int) -> Gathered:
        """Memory for the same numbers in float32; what has that type already is its own."""
        if self.dtype == torch.float32:
            return self.scratch(blocks)
        size = self._numbers(blocks, self._widths)
        if self._exact.numel() < size:
            self._exact = torch.empty(max(size, 2 * self._exact.numel()))
        return self._room(self._exact[:size], blocks, self._widths)

    def gather(self, layer: int, index: Tensor, target: Gathered) -> None:
        """Blocks of a layer, in the order of `index`, as they are kept."""
        if self._joined is not None:
            both = target.memory.view(2, *target.keys.shape)
            torch.index_select(self._joined[layer], 2, index, out=both)
            return
        gather_blocks(self._blocks[0][layer], index, target.keys)
        if not self.values_in_keys:
            gather_blocks(self._blocks[1][layer], index, target.values)

    def read(self, layer: int, index: Tensor, target: Gathered, exact: Gathered) -> None:
        """The same as numbers: in `exact`, which is `target` where they are kept as what they are read as."""
        self.gather(layer, index, target)
        if exact.memory.data_ptr() == target.memory.data_ptr():
            return
        if self.scales is None or self.formats is None:
            exact.memory.copy_(target.memory)
            return
        scales = self.scales[layer].unflatten(2, (-1, self.block_size))[:, :, index].flatten(2)
        codes = (target.keys, target.values)
        for kept, part, of_part, own in zip(self.formats, codes, self.of_tokens(exact), scales, strict=True):
            restore(kept.name, part.view(*own.shape, -1), own, of_part)

    def of_tokens(self, gathered: Gathered) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, slots, width] of what was gathered."""
        heads = self.kv_heads
        keys = gathered.keys.view(heads, -1, self.key_dim)
        if self.values_in_keys:
            return keys, keys[..., : self.value_dim]
        return keys, gathered.values.view(heads, -1, self.value_dim)

    def fresh(self, blocks: int, exact: bool = False) -> Gathered:
        """Memory that no other call gets; `exact`: of float32."""
        widths = self._widths if exact else self._rows
        size = self._numbers(blocks, widths)
        return self._room(torch.empty(size) if exact else self._scratch.new_empty(size), blocks, widths)

    @property
    def _widths(self) -> tuple[int, int]:
        return self.key_dim, self.value_dim

    def _numbers(self, blocks: int, widths: tuple[int, int]) -> int:
        width = widths[0] + (0 if self.values_in_keys else widths[1])
        return self.kv_heads * blocks * self.block_size * width

    def _room(self, memory: Tensor, blocks: int, widths: tuple[int, int]) -> Gathered:
        of_keys = self.kv_heads * blocks * self.block_size * widths[0]
        keys = memory[:of_keys].view(self.kv_heads, blocks, -1)
        if self.values_in_keys:
            return Gathered(memory, keys, keys)
        return Gathered(memory, keys, memory[of_keys:].view(self.kv_heads, blocks, -1))


def _as_array(values: Tensor) -> np.ndarray:
    """The same memory for numpy, which knows no bfloat16: as numbers of as many bits."""
    return (values.view(torch.int16) if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
