"""One forward pass of a model of transformers on a GPU: what its cache and its attention function ask for, by Triton's
kernels over paged KV.

A layer's keys and values are written when it attends to them, by the kernel that else rotates, which turns these by no
angle; layers that read another's find them written. Of latents see latents.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from actorserve.kernels.pages import ByHead, Scoring
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write

from ...adapter.hooks import Call, Unfit
from ...adapter.probe import AttentionCall
from ..executor import GpuBatch, attend
from .latents import LatentSizes
from .shape import SeenLayers


class DeviceStep:
    """See adapter/cache/layers.py:KeysValues and adapter/hooks.py:Attending."""

    def __init__(
        self,
        seen: SeenLayers,
        scorings: Sequence[Scoring],
        batches: Sequence[GpuBatch],
        pools: Sequence[Pools],
        unturned: RotaryTables,
        past: int = 0,
    ) -> None:
        """`scorings`, `batches` and `pools` are those of layers, with those that read another's keys. `unturned`: one
        position, of no angle. `past`: positions before this step, where rows go alone."""
        self.calls, self.place, self.past = iter(seen.asked), seen.place, past
        self.scorings, self.batches, self.pools, self.unturned = scorings, batches, pools, unturned
        self.given: dict[int, tuple[Tensor, Tensor]] = {}
        self.nowhere = torch.zeros_like(batches[0].inputs.positions)  # where tokens are in `unturned`

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """What comes of them is seen when it is attended to."""
        self.given[self.place[layer]] = keys, values
        return keys, values

    def attend(self, call: Call) -> Tensor:
        """[rows, tokens, heads, value_dim]."""
        asked = next(self.calls, None)
        if asked is None:
            raise Unfit("asks for attention more often than when it was tried")
        if asked.gathered:
            return self._attend_latents(call, asked)
        keys, values = self.given[asked.source]
        if call.keys is not keys or call.values is not values:
            raise Unfit("attends to other keys than when it was tried")
        pools, batch = self.pools[asked.source], self.batches[asked.layer]
        width = pools.keys.shape[3]
        queries = _flat(call.queries, width)
        if asked.layer == asked.source:
            new = _flat(keys, width), _flat(values, pools.values.shape[3])
            rotate_and_write(queries, *new, self.nowhere, batch.inputs.slots, self.unturned, pools)
        seen = attend(queries, pools, batch, self.scorings[asked.layer], _sinks(call))
        rows, heads, tokens, _ = call.queries.shape
        return seen.view(rows, tokens, heads, -1)[..., : values.shape[3]]

    def _attend_latents(self, call: Call, asked: AttentionCall) -> Tensor:
        """The keys that it is given are of this step's tokens alone."""
        sizes, pools = LatentSizes.of(call.module), self.pools[asked.source]
        width = pools.keys.shape[3]
        queries, batch = sizes.absorb(call, width), self.batches[asked.layer]
        if asked.layer == asked.source:
            keys = _flat(torch.cat(self.given[asked.source], -1), width)
            kept = Pools(pools.keys, pools.values[..., :0])  # values are parts of the keys
            rotate_and_write(queries, keys, keys[..., :0], self.nowhere, batch.inputs.slots, self.unturned, kept)
        seen = attend(queries, pools, batch, self.scorings[asked.layer], _sinks(call))
        rows, heads, tokens, _ = call.queries.shape
        return sizes.expand(call.module, seen).reshape(rows, tokens, heads, -1)


def _sinks(call: Call) -> ByHead:
    sinks: Tensor | None = call.options.get("s_aux")
    return ByHead() if sinks is None else ByHead(sinks.float().contiguous())


def _flat(heads: Tensor, width: int) -> Tensor:
    """[rows, heads, tokens, numbers] as [tokens, heads, width], a head's numbers side by side."""
    flat = heads.transpose(1, 2).flatten(0, 1)
    if flat.shape[2] < width:
        return functional.pad(flat, (0, width - flat.shape[2]))
    return flat if flat.stride(2) == 1 else flat.contiguous()
