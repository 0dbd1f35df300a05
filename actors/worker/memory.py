"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from ..model.kv import KVSpec


def make_pool(kv: KVSpec, blocks: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """KV memory [layers, 2, kv_heads, slots, head_dim]: zeros, which take memory only when they are first written."""
    (spec,) = kv.pools()
    size = blocks * kv.block_bytes(block_size, dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # torch.zeros would write them now
    pool = torch.frombuffer(memory, dtype=dtype)
    return pool.view(len(spec.layers), 2, spec.kv_heads, blocks * block_size, spec.key_dim)
