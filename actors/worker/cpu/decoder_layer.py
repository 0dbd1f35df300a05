"""One layer of a decoder on a CPU: attention and MLP, added to the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.aligned import AlignedAttention, AnyAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.native.layers import RowOperations
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.layers import LayerSpec
from ..quantization.base import CpuLinear
from .builder import CpuBuilder
from .layers.elementwise import exact_gelu_tanh, exact_silu, gelu_tanh, rotate, rotate_by_rows
from .layers.latent import LatentAttention, LatentStep
from .layers.moe import CpuMoe
from .layers.native import current
from .layers.norm import RMSNorm
from .memory.window_tables import AnyKV, TabledAttention

Attention = AnyAttention | TabledAttention | LatentStep

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # the second: batch-invariant
    "silu": (F.silu, exact_silu),
    "gelu_tanh": (gelu_tanh, exact_gelu_tanh),
}


class CpuLayer:
    """Attention and MLP of one layer."""

    def __init__(self, build: CpuBuilder, spec: LayerSpec, index: int) -> None:
        """`spec` with the names of the checkpoint; `index` is the layer's place in the KV memory."""
        self.shape, self.index = build.shape, index
        alike, group, library = build.batch_invariant, build.group, current()
        self.native = None if library is None or build.dtype != torch.float32 else RowOperations(library)
        self.rotate: Callable[[Tensor, Tensor], None] = rotate_by_rows if alike else rotate
        if self.native is not None:
            self.rotate = self.native.rotate
        self.act = ACTIVATIONS[build.shape.activation][alike]
        self.silu_mul = None if self.native is None or build.shape.activation != "silu" else self.native.silu_mul
        self.sum = None if group is None else group.sum_in_order if alike else group.all_reduce
        self.turns = build.shape.rope_of(index) is not None
        self.grows = build.shape.grows(index)
        self.unit_norm = build.unit_norm() if self.turns and build.shape.unit_norms else None
        self.attention_norm = build.norm_if(spec.attention_norm)
        self.latent = None if spec.latent is None else LatentAttention(build, spec.latent, index)
        if self.latent is None:
            self.qkv = build.linear(*spec.qkv)
        self.qk_norm = build.qk_norm(spec.q_norm, spec.k_norm)
        self.sinks = None if spec.sinks is None else build.get(spec.sinks).float()
        self.out = build.linear(spec.out)
        self.attention_post_norm = build.norm_if(spec.attention_post_norm)
        self.mlp_norm = build.norm_if(spec.mlp_norm)
        self.moe = None if spec.moe is None else CpuMoe(build, spec.moe, self.act)
        if self.moe is None:
            self.gate_up = build.linear(*spec.gate_up)
            self.down = build.linear(spec.down)
        self.mlp_post_norm = build.norm_if(spec.mlp_post_norm)

    def __call__(
        self,
        x: Tensor,
        rotations: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Attention,
        seen: Tensor | None = None,
        growth: Tensor | None = None,
    ) -> None:
        """Add this layer to x; `rotations` are those of the tokens' positions, `slots` where their KV goes.

        `seen`: what q, k and v are made of, where it is not x. `growth`: of queries at these positions, [tokens, 1, 1].
        """
        if seen is None:
            seen = x
        if self.attention_norm is not None:
            seen = self.attention_norm(seen)
        self._add(self.out, self.attention_post_norm, x, self._attend(seen, rotations, slots, kv, attention, growth))
        normed = x if self.mlp_norm is None else self.mlp_norm(x)
        if self.moe is not None:
            self._add(self.moe, self.mlp_post_norm, x, normed)
            return
        self._add(self.down, self.mlp_post_norm, x, self._activated(self.gate_up(normed)))

    def _activated(self, gate_up: Tensor) -> Tensor:
        if self.silu_mul is not None:
            return self.silu_mul(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self.act(gate).mul_(up)

    def mix(self, slots: Tensor, kv: AnyKV, attention: Attention, qkv: Tensor, growth: Tensor | None = None) -> Tensor:
        """Attention of rows of q, k and v, whose keys and values go to `slots`."""
        assert not isinstance(attention, LatentStep)
        queries = self._write(slots, kv, qkv)[:, : self.shape.heads]
        if growth is not None and self.grows:
            queries.mul_(growth)
        return attention(self.index, queries, self.sinks).view(len(qkv), -1)

    def remember(self, seen: Tensor, rotations: Tensor, slots: Tensor, kv: AnyKV) -> None:
        """Keep keys and values that are made of `seen` as it is; nothing is attended to."""
        self._write(slots, kv, self._turned(seen, rotations))

    def _write(self, slots: Tensor, kv: AnyKV, qkv: Tensor) -> Tensor:
        """Keys and values go to `slots`; heads of q, then k, then v of each row."""
        shape = self.shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        kv.write_joined(self.index, slots, heads[:, shape.heads :].view(len(qkv), 2, shape.kv_heads, shape.head_dim))
        return heads

    def _attend(
        self,
        seen: Tensor,
        rotations: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Attention,
        growth: Tensor | None,
    ) -> Tensor:
        """What heads see, [tokens, all their numbers]."""
        if self.latent is not None:
            assert isinstance(kv, PagedKV) and isinstance(attention, LatentStep)
            return self.latent(seen, rotations, slots, kv, attention, growth if self.grows else None)
        return self.mix(slots, kv, attention, self._turned(seen, rotations), growth)

    def _turned(self, seen: Tensor, rotations: Tensor) -> Tensor:
        """Rows of q, k and v, of which q and k stand for their positions."""
        qkv = self.qkv(seen)
        qk = qkv.view(len(seen), -1, self.shape.head_dim)[:, : self.shape.heads + self.shape.kv_heads]
        if self.qk_norm is not None:
            self.qk_norm(qk)
        if self.turns:
            self.rotate(qk, rotations)
        if self.unit_norm is not None:
            self.unit_norm.in_place(qk)
        return qkv

    def _add(self, linear: CpuLinear | CpuMoe, norm: RMSNorm | None, x: Tensor, inner: Tensor) -> None:
        """x += scale * norm(linear(inner)), of which each member of a group has a part."""
        if self.sum is None and norm is None and self.shape.residual_scale == 1:
            linear.add_to(x, inner)
            return
        made = linear(inner) if self.sum is None else self.sum(linear(inner))
        if norm is not None:
            norm.in_place(made)
        x.add_(made if self.shape.residual_scale == 1 else made.mul_(self.shape.residual_scale))


def step_attention(kv: PagedKV, spans: Sequence[Span]) -> AnyAttention:
    """That of a step of these spans, over all layers that the memory has."""
    return (AlignedAttention if kv.aligned else StepAttention)(kv, spans, kv.spec.layers)
