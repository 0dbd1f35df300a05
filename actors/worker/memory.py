"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import LatentPool, Pool, QuantisedPool

from ..model.memory.kv import KVSpec, PoolSpec

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


def make_pools(kv: KVSpec, blocks: int, block_size: int, dtype: torch.dtype) -> list[Pool]:
    """One for each of kv.pools(), as kernels/cpu/paged_kv.py describes them; `dtype` is that of keys and values."""
    return [_make_pool(spec, blocks * block_size, dtype) for spec in kv.pools()]


def _make_pool(spec: PoolSpec, slots: int, dtype: torch.dtype) -> Pool:
    layers, rest = len(spec.layers), (spec.kv_heads, slots)
    if spec.values_in_keys:
        return LatentPool(_zeros((layers, *rest, spec.key_dim), dtype), spec.value_dim)
    if spec.key_dim == spec.value_dim:
        numbers: Tensor | tuple[Tensor, Tensor] = _zeros((layers, 2, *rest, spec.key_dim), dtype)
    else:
        numbers = _zeros((layers, *rest, spec.key_dim), dtype), _zeros((layers, *rest, spec.value_dim), dtype)
    return QuantisedPool(numbers, _zeros((layers, 2, *rest), torch.float32)) if dtype == torch.int8 else numbers


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, which take memory only when they are first written."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # torch.zeros would write them now
    return torch.frombuffer(memory, dtype=dtype).view(shape)
