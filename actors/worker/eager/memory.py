"""KV memory of a GPU for models that are run step by step: what is left beside weights and the largest step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...model.architecture import Architecture
from ...model.memory.kv_memory import KVMemory
from ...options.config import Config, ConfigError
from ...runtime.process import Context
from ..gpu.memory import (
    RESERVE,
    blocks_in,
    check_block_size,
    check_given_bytes,
    device_memory,
    kv_block_bytes,
    kv_kind,
    make_pools,
    measure,
    room_for_blocks,
)
from ..start.shared import warn_unused_memory
from .kv import DeviceKV


class DeviceMemory(NamedTuple):
    """That of a worker."""

    kv: DeviceKV
    blocks: int
    plan: KVMemory


def plan_in_one_table(config: Config, shape: Architecture, longest: int, kind: torch.dtype) -> KVMemory:
    """Blocks hold all layers, also those that see a window alone."""
    return KVMemory(kv_block_bytes(shape, config.block_size, kind), -(-longest // config.block_size), None, 0)


def give_memory(
    context: Context,
    shape: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    longest: int,
    try_out: Callable[[], None],
    beside: int = 0,
) -> DeviceMemory:
    """`longest`: positions of a row; `try_out` is the largest step; `beside`: bytes that are kept for pictures."""
    config = context.config
    check_block_size(config)
    kind = kv_kind(config, dtype, device)
    if kind != dtype:
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: {context.model.architecture} has auto on a GPU")
    plan = plan_in_one_table(config, shape, longest, kind)
    peak, used = measure(device, try_out)
    used += beside
    total = device_memory(device)[1]
    room = room_for_blocks(config, total, used, peak)
    blocks = blocks_in(config, plan, longest, room)
    if words := check_given_bytes(config, plan, blocks, total - used - peak, total - used - peak - RESERVE):
        context.log.warning("%s", words)
    warn_unused_memory(context, blocks, plan)
    context.log.info("of %.1f GiB, %.2f GiB are used, a step takes %.2f", *(v / 2**30 for v in (total, used, peak)))
    context.log.info("KV memory: %s", plan.words(config, longest, blocks, room))
    pools = make_pools(shape, blocks, config.block_size, kind, device)
    return DeviceMemory(DeviceKV(pools, config.block_size, longest, device), blocks, plan)
