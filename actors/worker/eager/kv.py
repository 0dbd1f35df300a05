"""KV memory on a GPU, of a runner that keeps its rows on the host: what a step needs of it is sent before its first
layer.

Each layer has pools of its own; those of cross attention read another's, at other positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actorserve.kernels.cpu.paged_kv import Layers, Span
from actorserve.kernels.pages import Pages, Scoring
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.rotary_kv import Pools

from ..transfer import to_device


class DeviceKV:
    """Of one model, in one block table."""

    def __init__(self, pools: Sequence[Pools], block_size: int, longest: int, device: torch.device) -> None:
        """`longest`: positions of a row."""
        self.pools, self.block_size, self.device = pools, block_size, device
        self._width = -(-longest // block_size)

    def table(self, spans: Sequence[Span]) -> Tensor:
        """Their blocks, int32 [rows, as many as a row may have]."""
        made = np.zeros((len(spans), self._width), np.int32)
        for row, span in enumerate(spans):
            count = -(-(span.position + span.size) // self.block_size)
            made[row, :count] = span.blocks[:count]
        return to_device(made, self.device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens, kv_heads, width] at `slots`, which are on the device."""
        blocks, places = slots // self.block_size, slots % self.block_size
        for pool, part in zip(self.pools[layer][:2], (keys, values), strict=True):
            assert pool is not None
            pool[blocks, :, places] = _widened(part, pool.shape[3])

    def attention(self, spans: Sequence[Span], layers: Layers, crosses: bool = False) -> DeviceAttention:
        """Of a step, for all layers; `crosses`: nothing is laid aside, so these are as others."""
        return DeviceAttention(self, spans, layers)

    def blocks_of(self, span: Span) -> Tensor:
        """Those that hold a span and what is before it, for `contexts`."""
        count = -(-(span.position + span.size) // self.block_size)
        return to_device(span.blocks[:count], self.device)

    def contexts(self, span: Span, blocks: Tensor, layers: Layers, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, positions, width] of a span, its own included."""
        rule, size = layers[layer], span.position + span.size
        assert rule is not None
        keys, values = (
            pool[blocks].transpose(0, 1).flatten(1, 2)[:, :size]
            for pool in self.pools[layer if rule.source is None else rule.source][:2]
        )
        return keys[..., : rule.key_dim], values[..., : rule.value_dim]


class DeviceAttention:
    """Called once a layer, when its keys and values are written."""

    def __init__(self, kv: DeviceKV, spans: Sequence[Span], layers: Layers) -> None:
        self._kv, self._layers = kv, layers
        sizes = [span.size for span in spans]
        self._blocks = kv.table(spans)
        ends = [span.position + span.size for span in spans]
        self._lengths = to_device(np.array(ends, np.int32), kv.device)
        self._starts: Tensor | None = None
        if max(sizes) > 1:
            self._starts = to_device(np.cumsum([0, *sizes], dtype=np.int32), kv.device)

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """[tokens, heads, value_dim], for `queries` [tokens, heads, key_dim]."""
        rule = self._layers[layer]
        assert rule is not None
        pools = self._kv.pools[layer if rule.source is None else rule.source]
        pages = Pages(pools.keys, pools.values, self._blocks, self._lengths, pools.scales)
        wide, scoring = _widened(queries, pools.keys.shape[3]).contiguous(), Scoring(rule.scale, rule.window)
        if self._starts is None:
            return paged_decode(wide, pages, scoring)[..., : rule.value_dim]
        return paged_prefill(wide, self._starts, pages, scoring)[..., : rule.value_dim]


def _widened(heads: Tensor, width: int) -> Tensor:
    """As wide as kernels take them: zeros change no product."""
    return functional.pad(heads, (0, width - heads.shape[-1])) if heads.shape[-1] < width else heads
