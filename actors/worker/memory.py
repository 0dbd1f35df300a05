"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import Pool

from ..model.kv import KVSpec


def make_pools(kv: KVSpec, blocks: int, block_size: int, dtype: torch.dtype) -> list[Pool]:
    """One for each of kv.pools(), as kernels/cpu/paged_kv.py describes them."""
    pools: list[Pool] = []
    for spec in kv.pools():
        layers, rest = len(spec.layers), (spec.kv_heads, blocks * block_size)
        if spec.key_dim == spec.value_dim:
            pools.append(_zeros((layers, 2, *rest, spec.key_dim), dtype))
        else:
            keys, values = (_zeros((layers, *rest, width), dtype) for width in (spec.key_dim, spec.value_dim))
            pools.append((keys, values))
    return pools


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, which take memory only when they are first written."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # torch.zeros would write them now
    return torch.frombuffer(memory, dtype=dtype).view(shape)
