"""Multi-head latent attention on a GPU (model/layers.py: LatentSpec). Of a token a latent is kept, once for all heads.

All of it is absorbed, as cpu/layers/latent.py names it: queries are multiplied with `k_up`, so that all heads attend
over what is kept, as one head of keys whose first numbers are the values; and of the sums of latents `v_up` makes the
result. Five launches and three products or four:
    down · norm of q, up · norm of the latent · k_up · rotate, write KV · attention (and merge of splits) · v_up
`k_up` and `v_up` are floats whatever the others are. Where queries see some tokens alone (indexer.py), attention is
over the latents that were chosen, by this layer or one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.fixed_linear import fixed_products
from actorserve.kernels.triton.rms_norm import rms_norm
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write

from ....model.layers import LatentSpec
from .indexer import GpuIndexer

if TYPE_CHECKING:
    from ..executor import GpuBatch, GpuBuilder

Attend = Callable[[Tensor, Pools, "GpuBatch"], Tensor]  # of queries [tokens, heads, key_dim] over a layer's pools


class HeadProducts(NamedTuple):
    """x [tokens, heads, inputs] times a matrix for each head, to `out` [tokens, heads, outputs]."""

    weights: Tensor  # [heads, outputs, inputs]
    batch_invariant: bool

    def __call__(self, x: Tensor, out: Tensor) -> None:
        if self.batch_invariant:
            fixed_products(x, self.weights, out)
        else:
            torch.bmm(x.transpose(0, 1), self.weights.mT, out=out.transpose(0, 1))


class LatentAttention:
    """That of one layer, from what q and the latent are made of to what heads have seen."""

    def __init__(self, build: GpuBuilder, spec: LatentSpec, attend: Attend) -> None:
        """`spec` with the names of the checkpoint."""
        shape, sizes = build.shape, build.shape.latent
        assert sizes is not None, "there are latents"
        self.sizes, self.heads, self.interleaved, self._attend = sizes, shape.heads, shape.rope.interleaved, attend
        *down, last = spec.products()
        self.q_up = None if spec.q_up is None else build.linear(*last)
        self.down = [build.linear(*product) for product in (down if self.q_up else [*down, last])]
        self.q_gain = None if spec.q_norm is None else build.tensor(spec.q_norm)
        self.kv_gain = build.tensor(spec.kv_norm)
        up = build.tensor(spec.kv_up.name).view(self.heads, -1, sizes.rank)
        k_up, v_up = up.split([sizes.plain, sizes.value_dim], 1)
        self.k_up = HeadProducts(k_up.mT.contiguous(), build.batch_invariant)
        self.v_up = HeadProducts(v_up.contiguous(), build.batch_invariant)
        self.indexer: GpuIndexer | None = None
        if spec.index is not None and sizes.index is not None:
            self.indexer = GpuIndexer(build, spec.index, sizes.index)

    def __call__(
        self, normed: Tensor, turns: RotaryTables, pools: Pools, batch: GpuBatch, growth: Tensor | None = None
    ) -> Tensor:
        """What heads see, [tokens, heads · value_dim]; what is kept of the tokens goes to their slots. `growth`: of
        queries, by position."""
        tokens, rank, inputs = len(normed), self.sizes.rank, batch.inputs
        q, q_latent, entry = self._made(normed)
        latent, shared = entry.split([rank, self.sizes.turning], 1)
        rms_norm(latent, self.kv_gain, self.sizes.norm_eps, latent)
        if growth is not None:
            q.mul_(growth[inputs.positions][:, None])
        plain, turning = q.unflatten(1, (self.heads, -1)).split([self.sizes.plain, self.sizes.turning], 2)
        queries = torch.empty(tokens, self.heads, rank + self.sizes.turning, dtype=q.dtype, device=q.device)
        absorbed, turned = queries.split([rank, self.sizes.turning], 2)
        self.k_up(plain, absorbed)
        kept = Pools(pools.keys[..., rank:], pools.values)
        written = turning, shared[:, None], latent[:, None], inputs.positions, inputs.slots, turns, kept
        rotate_and_write(*written, out=turned, interleaved=self.interleaved)
        if self.indexer is not None and batch.chosen is not None:
            self.indexer(normed, q_latent, turns, pools, batch)
        seen = self._attend(queries, pools, batch)
        out = torch.empty(tokens, self.heads, self.sizes.value_dim, dtype=q.dtype, device=q.device)
        self.v_up(seen, out)
        return out.view(tokens, -1)

    def _made(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(queries of all heads side by side, what they are made of, the latent and what turns beside it) of each
        token."""
        made, kept = [linear(normed) for linear in self.down], self.sizes.rank + self.sizes.turning
        entry = made[-1][:, -kept:]
        q = made[0] if len(made) == 2 else made[0][:, :-kept]
        latent = q
        if self.q_up is not None:
            latent = q if self.q_gain is None else rms_norm(q, self.q_gain, self.sizes.norm_eps)
            q = self.q_up(latent)
        return q, latent, entry
