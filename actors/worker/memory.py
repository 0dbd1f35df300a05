"""KV memory that costs nothing until it is written."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from ..model.architecture import Architecture
from ..model.machine import block_bytes


def make_pool(shape: Architecture, blocks: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """KV memory [layers, 2, kv_heads, slots, head_dim]: zeros, which take memory only when they are first written."""
    size = blocks * block_bytes(shape, block_size, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # torch.zeros would write them now
    pool = torch.frombuffer(memory, dtype=dtype)
    return pool.view(shape.layers, 2, shape.kv_heads, blocks * block_size, shape.head_dim)
