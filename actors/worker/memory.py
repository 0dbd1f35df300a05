"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from actorserve.kernels.cpu.kv_formats import storage_of
from actorserve.kernels.cpu.pool_memory import LatentPool, Pool, QuantisedPool

from ..model.memory.kv import KV_TYPES, KVSpec, KVType, PoolSpec
from ..model.memory.windows import Packing
from .kept_memory.file import Take, anonymous

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
LARGE = 1 << 18  # bytes
LARGEST = 32 << 20  # up to which glibc learns by itself


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Large tensors get pages of their own from the kernel, and give them back at once.

    While a model is loaded large tensors that stay come between others that go; in malloc's heap the gaps that these
    leave would be kept. Afterwards malloc keeps large blocks as it does by itself when it has learnt their sizes: what
    steps need is not asked of the kernel each time.
    """
    malloc = ctypes.CDLL(None)
    if not hasattr(malloc, "mallopt"):  # another C library than glibc
        yield
        return
    malloc.mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        malloc.malloc_trim(0)
        malloc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        malloc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST)


def make_pools(
    kv: KVSpec, blocks: int, block_size: int, kind: KVType | torch.dtype, take: Take = anonymous
) -> list[Pool]:
    """One for each of kv.pools(), as kernels/cpu/pool_memory.py describes them; `kind` is that of keys and values, and
    `take` gives their memory, which torch.zeros would write now.
    """
    kept = _as_kv_type(kind)

    def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.frombuffer(take(math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)

    return [_make_pool(spec, blocks * block_size, kept, zeros) for spec in kv.pools()]


def _make_pool(
    spec: PoolSpec, slots: int, kind: KVType, zeros: Callable[[tuple[int, ...], torch.dtype], Tensor]
) -> Pool:
    layers, rest, dtype = len(spec.layers), (spec.kv_heads, slots), storage_of(kind.keys)
    keys, *values = (size // dtype.itemsize for size in spec.row_bytes(kind))
    if spec.values_in_keys:
        return LatentPool(zeros((layers, *rest, keys), dtype), spec.value_dim)
    if spec.one_memory(kind):
        numbers: Tensor | tuple[Tensor, Tensor] = zeros((layers, 2, *rest, keys), dtype)
    else:
        numbers = zeros((layers, *rest, keys), dtype), zeros((layers, *rest, values[0]), dtype)
    if not kind.keys.scale_bytes:
        return numbers
    return QuantisedPool(numbers, zeros((layers, 2, *rest), torch.float32), kind)


def make_packed_pools(
    specs: Sequence[KVSpec], packing: Packing, blocks: int, block_size: int, kind: KVType | torch.dtype
) -> list[Pool]:
    """Of several block tables, each with layers of one shape, over one memory: see Packing. Towards a table a pool has
    as many blocks for each of the memory's as that has rows of its heads; all but the first of them belong to heads.
    """
    kept = _as_kv_type(kind)
    slots, dtype = blocks * block_size, storage_of(kept.keys)
    memories = [
        torch.frombuffer(anonymous(slots * one.bytes_of(numbers)), dtype=dtype)
        for one, numbers in ((kept.keys, packing.keys), (kept.values, packing.values))
    ]
    scales: dict[int, Tensor] = {}  # by the number of rows

    def pool_of(spec: PoolSpec) -> Pool:
        rows = packing.rows(spec)
        shape = len(spec.layers), spec.kv_heads, block_size * ((blocks - 1) * rows + 1)
        keys, values = (
            memory.as_strided((*shape, width), (spec.kv_heads * block_size * width, block_size * width, width, 1))
            for memory, width in zip(memories, _widths(spec, kept), strict=True)
        )
        if not kept.keys.scale_bytes:
            return keys, values
        if rows not in scales:
            scales[rows] = torch.frombuffer(anonymous(2 * slots * rows * 4), dtype=torch.float32)
        apart = spec.kv_heads * block_size, slots * rows, block_size, 1
        return QuantisedPool((keys, values), scales[rows].as_strided((shape[0], 2, *shape[1:]), apart), kept)

    return [pool_of(pool) for spec in specs for pool in spec.pools()]


def _widths(spec: PoolSpec, kind: KVType) -> tuple[int, int]:
    """Of a head's keys and values, in numbers of the memory's type."""
    size = storage_of(kind.keys).itemsize
    return kind.keys.bytes_of(spec.key_dim) // size, kind.values.bytes_of(spec.value_dim) // size


def _as_kv_type(kind: KVType | torch.dtype) -> KVType:
    return KV_TYPES[str(kind).removeprefix("torch.")] if isinstance(kind, torch.dtype) else kind
