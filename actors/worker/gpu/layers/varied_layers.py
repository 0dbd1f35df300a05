"""The forward pass on a GPU of models whose layers are not Llama's: norms behind attention and MLP or none before them,
norms of all heads together or without gains, attention over latents (latent.py), gates by GELU, rotations that differ
by layer, queries that grow with the position, and factors.

More launches a layer than worker/gpu/executor.py has, which these models share all else with: each norm behind is one
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write
from actorserve.kernels.triton.silu_mul import GATES

from ....model.architecture import Architecture
from ....model.layers import LayerSpec
from ....model.rope import Rope
from ...models.rope import cosines_and_sines, growths
from ...models.sharding import Get
from ...tensor_parallel import TensorParallelGroup
from ..executor import GpuBatch, GpuBuilder, GpuLayer, GpuModel, Hidden
from ..lora.sites import GpuLoraSites
from .fused import FUSED
from .indexer import room_for_chosen
from .latent import LatentAttention
from .stored import StoredLinears


class VariedBuilder(GpuBuilder):
    """Gains with what norms add to them."""

    def tensor(self, name: str) -> Tensor:
        gain = super().tensor(name)
        is_gain = gain.dim() == 1 and self.shape.norm_offset != 0
        return self.get(f"{name}.weight").to(self.device, torch.float32) + self.shape.norm_offset if is_gain else gain

    def gain(self, name: str | None) -> Tensor | None:
        return None if name is None else self.tensor(name)


class VariedLayer(GpuLayer):
    """Attention and MLP of one layer."""

    growth: Tensor | None = None  # of queries by position, where they grow; who has the table sets it

    def _make_norms(self, build: GpuBuilder, spec: LayerSpec) -> None:
        assert isinstance(build, VariedBuilder)
        self.attention_norm, self.mlp_norm = build.gain(spec.attention_norm), build.gain(spec.mlp_norm)
        self.attention_post_norm = build.gain(spec.attention_post_norm)
        self.mlp_post_norm = build.gain(spec.mlp_post_norm)

    def _make_qkv(self, build: GpuBuilder, spec: LayerSpec, index: int) -> None:
        unit = build.shape.unit_norms and build.shape.rope_of(index) is not None
        self.unit_eps = build.shape.norm_eps if unit else None
        self.latent = None if spec.latent is None else LatentAttention(build, spec.latent, self._attend)
        if self.latent is None:
            super()._make_qkv(build, spec, index)

    def compute(self, x: Tensor, added: Tensor | None, turns: RotaryTables, pools: Pools, batch: GpuBatch) -> Tensor:
        """What is still to be added to the residual stream `x` in the end; `added` is what was before."""
        seen = self._seen(self._normed(x, added, self.attention_norm), turns, pools, batch)
        added = self._made(self.out, seen, self.attention_post_norm)
        normed = self._normed(x, added, self.mlp_norm)
        if self.moe is not None:
            return self._made(partial(self.moe, slots=batch.inputs.slots), normed, self.mlp_post_norm)
        return self._made(self.down, GATES[self.shape.activation](self.gate_up(normed)), self.mlp_post_norm)

    def _seen(self, normed: Tensor, turns: RotaryTables, pools: Pools, batch: GpuBatch) -> Tensor:
        """What heads see, [tokens, all their numbers]."""
        if self.latent is not None:
            return self.latent(normed, turns, pools, batch, self.growth)
        shape, inputs = self.shape, batch.inputs
        heads = self.qkv(normed).view(len(normed), -1, shape.head_dim)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        norms = self.norms
        if norms is not None and shape.layer.joint_norms:
            for part, gain in ((q.flatten(1), norms.q_gain), (k.flatten(1), norms.k_gain)):
                rms_norm(part, gain, norms.eps, part)
            norms = None
        written = inputs.positions, inputs.slots, turns, pools
        pairs, unit, growth = shape.rope.interleaved, self.unit_eps, self.growth
        rotate_and_write(q, k, v, *written, norms=norms, interleaved=pairs, unit_eps=unit, growth=growth)
        return self._attend(q, pools, batch).view(len(normed), -1)

    def _normed(self, x: Tensor, added: Tensor | None, gain: Tensor | None) -> Tensor:
        """x += added; then its norm, if there is one."""
        if gain is not None and added is not None:
            return add_rms_norm(added, x, gain, self.shape.norm_eps)
        if added is not None:
            x.add_(added)
        return x if gain is None else rms_norm(x, gain, self.shape.norm_eps)

    def _made(self, linear: Callable[[Tensor], Tensor], inner: Tensor, gain: Tensor | None) -> Tensor:
        made = self._sum(linear(inner))
        if gain is not None:
            made = rms_norm(made, gain, self.shape.norm_eps)
        return made if self.shape.residual_scale == 1 else made * self.shape.residual_scale


class VariedModel(GpuModel):
    """A decoder of such layers."""

    def __init__(self, build: VariedBuilder, max_length: int) -> None:
        shape, dtype, device = build.shape, build.dtype, build.device
        assert shape.vision is None or not shape.vision.axes, "one position turns tokens of these layers"
        self.varied: list[VariedLayer] = []
        super().__init__(build, max_length, fused=False)
        self.embedding_scale = float(torch.tensor(shape.embedding_scale, dtype=dtype))
        self.topk = shape.chosen_within(max_length)
        kinds, kind_of = shape.rope_kinds()
        tables = [_tables(rope, shape.turning, max_length, device) for rope in kinds]
        self.turns_of = [tables[kind] for kind in kind_of]
        if (growth := shape.growth_within(max_length)) is not None:
            table = growths(growth, max_length).to(device)
            for index, layer in enumerate(self.varied):
                layer.growth = table if shape.grows(index) else None

    def make_layers(self, build: GpuBuilder) -> Sequence[GpuLayer]:
        self.varied = [VariedLayer(build, index) for index in range(build.shape.layers)]
        return self.varied

    def forward(self, batch: GpuBatch, pools: list[Pools]) -> Hidden:
        x = self.embedded(batch)
        batch = batch.alike() if self.batch_invariant else batch
        if self.topk is not None:
            batch = batch._replace(chosen=room_for_chosen(batch, self.topk))
        batches = batch.by_layer(self.table_of)
        added: Tensor | None = None
        for index, (turns, own, seen) in enumerate(zip(self.turns_of, pools, batches, strict=True)):
            layer = self.varied[index]
            if self.taps is not None:
                self.taps.keep(index, x, added)
            added = layer.compute(x, added, turns, own, seen)
        assert added is not None
        return self._ended(added, x)

    def own_logits(self, normed: Tensor) -> Tensor:
        found, shape = super().own_logits(normed), self.shape
        if shape.logits_scale != 1:
            found = found * shape.logits_scale
        if shape.logits_cap is None:
            return found
        return (found.float() / shape.logits_cap).tanh_().mul_(shape.logits_cap).to(found.dtype)


def _tables(rope: Rope | None, head_dim: int, length: int, device: torch.device) -> RotaryTables:
    """Of a layer that does not turn: one pair that is turned by no angle."""
    if rope is None:
        return RotaryTables(torch.ones(length, 1, device=device), torch.zeros(length, 1, device=device))
    cos, sin = cosines_and_sines(rope, head_dim, length)
    return RotaryTables(cos.to(device), sin.to(device))


def is_plain(shape: Architecture, max_length: int) -> bool:
    """Whether layers are those of worker/gpu/executor.py, for texts of up to `max_length` tokens."""
    layer = shape.layer
    if None in (layer.attention_norm, layer.mlp_norm) or layer.joint_norms or shape.activation != "silu":
        return False
    if layer.latent is not None or shape.unit_norms or shape.growth_within(max_length) is not None:
        return False
    if any((layer.attention_post_norm, layer.mlp_post_norm, shape.ropes, shape.rope.interleaved)):
        return False
    factors = (shape.norm_offset, shape.embedding_scale, shape.residual_scale, shape.logits_scale)
    return factors == (0.0, 1.0, 1.0, 1.0) and shape.soft_cap is None and shape.logits_cap is None


def make_model(
    shape: Architecture,
    get: Get,
    dtype: torch.dtype,
    max_length: int,
    device: torch.device,
    group: TensorParallelGroup | None = None,
    fused: bool = FUSED,
    deterministic: bool = False,
    lora: GpuLoraSites | None = None,
    stored: StoredLinears | None = None,
) -> GpuModel:
    """The one for this shape; the rest as in GpuBuilder, `fused` where its layers can be."""
    given = shape, get, dtype, device, group, deterministic, lora, stored
    if is_plain(shape, max_length):
        return GpuModel(GpuBuilder(*given), max_length, fused)
    return VariedModel(VariedBuilder(*given), max_length)
