"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from actorserve.kernels.cpu.kv_formats import storage_of
from actorserve.kernels.cpu.pool_memory import LatentPool, Pool, QuantisedPool

from ..model.memory.kv import KV_TYPES, KVSpec, KVType, PoolSpec
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
    kept = KV_TYPES[str(kind).removeprefix("torch.")] if isinstance(kind, torch.dtype) else kind

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
