"""The forward pass on a CPU; which tensors a layer has, and what is done with them, is data (model/layers.py).

One flat batch: the tokens of all sequences of a step, one after the other, whether they are a prompt's or decode.
    x  the residual stream [tokens, hidden]
    x += out(attention(rope(qkv(norm x))))      x += down(silu(gate(norm x)) * up(norm x))      in each layer
    logits = head(norm x)                                                                       where a row samples

Ways to spend few operations a layer, since an operation costs some µs whatever it does:
- q, k and v are one product, gate and up another; residuals are added by the product itself or in place.
- In the checkpoint number i of the n that turn in a head is rotated with number i + n / 2. Rows of the q and k weights
  are put in another order at load, so that such pairs lie side by side: a rotation is then one complex multiplication
  (by 1 for numbers that do not turn), and as queries and keys are reordered alike, their products are what they were.
- In float32 the root-mean-square norm is three operations: x / sqrt(|x|² + n·eps) * (gain · sqrt(n)).

Knows tensors; not where they come from, nor what a request is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.aligned import AlignedAttention, AnyAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.native.layers import PlainLayers, RowOperations
from actorserve.kernels.cpu.native.linear import FourBits
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.architecture import Architecture
from ...model.layers import EMBEDDINGS, FINAL_NORM, ROTATED, LayerSpec, LinearSpec
from ...model.quantization import NONE
from ...model.rope import Growth, Rope
from ..formats.four_bits import ReadFour
from ..formats.four_bits import joined as join_four_bits
from ..lora.sites import LoraSites
from ..models.rope import cosines_and_sines
from ..models.sharding import Get
from ..models.tensors import join, split_rows
from ..quantization.base import CpuLinear, LinearTensors, implementation_of
from ..tensor_parallel import TensorParallelGroup, embed
from .layers.elementwise import exact_gelu_tanh, exact_silu, exact_soft_cap, gelu_tanh, rotate, rotate_by_rows, soft_cap
from .layers.fused import fused_layers, has_native_rows
from .layers.latent import LatentAttention, LatentStep
from .layers.linear import PackedLinear, is_large
from .layers.moe import CpuMoe
from .layers.native import FEW_TOKENS, current
from .memory.states import StepStates
from .memory.window_tables import AnyKV, TabledAttention

Attention = AnyAttention | TabledAttention | LatentStep

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # the second: batch-invariant
    "silu": (F.silu, exact_silu),
    "gelu_tanh": (gelu_tanh, exact_gelu_tanh),
}


class RMSNorm:
    """x / rms(x) * (gain + offset) over the last dimension."""

    def __init__(self, gain: Tensor, eps: float, batch_invariant: bool = False, offset: float = 0.0) -> None:
        library, size = current(), gain.shape[-1]
        self.native = None if library is None else RowOperations(library)
        self.eps = eps
        self.in_float32 = batch_invariant or offset != 0  # what is added may be more than 16 bits hold
        self.batch_invariant = batch_invariant
        self.size = (size,)
        self.gain = gain
        self.scaled_gain = (gain.float() + offset) * math.sqrt(size)
        self.floor = torch.tensor(math.sqrt(eps * size))

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:  # 16-bit types are squared and summed in float32
            if self.in_float32:
                return self(x.float()).to(x.dtype)
            return F.rms_norm(x, self.size, None, self.eps).mul_(self.gain)
        if self.native is not None and self.gain.dim() == 1:
            rows = x.reshape(-1, self.size[0])
            return self.native.norm(rows, self.scaled_gain, self.eps * self.size[0]).view(x.shape)
        return x.div(self._length(x)).mul_(self.scaled_gain)

    def in_place(self, x: Tensor) -> None:
        """x becomes its norm."""
        if self.native is not None and x.dtype == torch.float32:
            self.native.norm_in_place(x, self.scaled_gain, self.eps * self.size[0])
        elif x.dtype == torch.float32:
            x.div_(self._length(x)).mul_(self.scaled_gain)
        else:
            x.copy_(self(x))

    def _length(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
        if self.batch_invariant:  # by operations that IEEE 754 lets have one result, in a vector or not
            return length.mul_(length).add_(self.eps * self.size[0]).sqrt_()
        return torch.hypot(length, self.floor, out=length)


class CpuBuilder:
    """Makes the parts of a model of a checkpoint's tensors, one after the other."""

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        group: TensorParallelGroup | None,
        batch_invariant: bool,
        four_bits: ReadFour | None = None,
        lora: LoraSites | None = None,
    ) -> None:
        """`lora`: where products are kept that adapters may change."""
        self.shape = shape
        self.four_bits = four_bits
        self.lora = lora
        self.get = get
        self.dtype = dtype
        self.group = group
        self.batch_invariant = batch_invariant
        size = sum(math.prod(sizes) for sizes in shape.tensors().values()) * dtype.itemsize
        self.from_memory = size > PackedLinear.CACHED

    def layer(self, index: int) -> LayerSpec:
        """The tensors of a layer; where experts are divided over the group, with this member's."""
        return self.shape.layer_of(index, 0 if self.group is None else self.group.rank)

    def norm(self, name: str, eps: float | None = None) -> RMSNorm:
        """`eps`: other than that of most norms."""
        gain = self.get(f"{name}.weight").to(self.dtype, copy=True)
        return self._norm_of(gain, eps)

    def unit_norm(self) -> RMSNorm:
        """Of single heads, without a gain."""
        return RMSNorm(
            torch.ones(self.shape.heads + self.shape.kv_heads, self.shape.head_dim),
            self.shape.norm_eps,
            self.batch_invariant,
        )

    def norm_if(self, name: str | None) -> RMSNorm | None:
        return None if name is None else self.norm(name)

    def _norm_of(self, gain: Tensor, eps: float | None = None) -> RMSNorm:
        return RMSNorm(gain, self.shape.norm_eps if eps is None else eps, self.batch_invariant, self.shape.norm_offset)

    def linear(self, *linears: LinearSpec, few_rows: bool = False) -> CpuLinear:
        """The linears as one; what is rotated has its rows reordered for that. `few_rows` as in LinearTensors."""
        method, joined = self.shape.method_of(*linears), partial(self._joined, linears)
        tensors = LinearTensors(
            joined,
            self.dtype,
            bool(linears[0].bias),
            self.from_memory,
            self.shape.row_scales(*linears),
            few_rows,
            self.batch_invariant,
            self._four_bits(linears),
        )
        made = implementation_of(method).cpu_linear(tensors)
        if self.lora is None or few_rows or linears[0].name == self.shape.head.name:
            return made
        return self.lora.wrap(made, [linear.name for linear in linears], tensors.bias())

    def _four_bits(self, linears: Sequence[LinearSpec]) -> FourBits | None:
        """Those of a checkpoint that are so in all of the linears."""
        if self.four_bits is None:
            return None
        parts = [self.four_bits(linear.name) for linear in linears]
        return join_four_bits(parts, lambda tensors: list(self._arranged(linears, tensors)))

    def router(self, linear: LinearSpec) -> CpuLinear:
        """A product that is never quantised: it has few rows, and all hangs on it."""
        joined = partial(self._joined, [linear])
        tensors = LinearTensors(joined, self.dtype, bool(linear.bias), batch_invariant=self.batch_invariant)
        return implementation_of(NONE).cpu_linear(tensors)

    def qk_norm(self, q_norm: str | None, k_norm: str | None) -> Callable[[Tensor], None] | None:
        """Norms heads of q and k, [tokens, heads + kv_heads, head_dim], in place."""
        if q_norm is None or k_norm is None:
            return None
        shape = self.shape
        q, k = (self._paired(self.get(f"{name}.weight").to(self.dtype)) for name in (q_norm, k_norm))
        if shape.layer.joint_norms:
            return partial(_norm_apart, self._norm_of(q), self._norm_of(k), shape.heads)
        gains = torch.cat([q.expand(shape.heads, -1), k.expand(shape.kv_heads, -1)])
        return self._norm_of(gains).in_place

    def _joined(self, linears: Sequence[LinearSpec], kind: str, dtype: torch.dtype) -> Tensor:
        tensors = [self.get(f"{linear.name}.{kind}") for linear in linears]
        turned = any(axis in ROTATED for linear in linears for axis in linear.rows)
        if len(tensors) == 1 and not turned and tensors[0].dtype == dtype and is_large(tensors[0]):
            return tensors[0].contiguous()  # where it is mapped; a small one would keep the whole file mapped
        return join(list(self._arranged(linears, tensors)), dtype)

    def _arranged(self, linears: Sequence[LinearSpec], tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Their rows in the order in which this executor has them."""
        for linear, tensor in zip(linears, tensors, strict=True):
            yield from arranged(linear, tensor, self.shape)

    def _paired(self, rows: Tensor) -> Tensor:
        return _paired(rows, self.shape)


def arranged(linear: LinearSpec, tensor: Tensor, shape: Architecture) -> Iterator[Tensor]:
    """A linear's rows in the order in which this executor has them; `shape` is that of the part that was read."""
    for axis, rows in split_rows(linear, tensor, shape):
        yield _paired(rows, shape) if axis in ROTATED else rows


def _paired(rows: Tensor, shape: Architecture) -> Tensor:
    """Rows of whole heads, the two of each pair that is rotated side by side."""
    if shape.rope.interleaved:
        return rows
    heads = rows.reshape(len(rows) // shape.head_dim, shape.head_dim, *rows.shape[1:])
    turning, others = heads.tensor_split([shape.rope.rotary_dim or shape.head_dim], 1)
    pairs = turning.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, others], 1).view(rows.shape)


def _norm_apart(q_norm: RMSNorm, k_norm: RMSNorm, heads: int, qk: Tensor) -> None:
    """All heads of q together, and all of k."""
    q_norm.in_place(qk[:, :heads].flatten(1))
    k_norm.in_place(qk[:, heads:].flatten(1))


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
        self.grows = not self.turns and build.shape.growth is not None
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
    ) -> None:
        """Add this layer to x; `rotations` are those of the tokens' positions, `slots` where their KV goes.

        `seen`: what q, k and v are made of, where it is not x.
        """
        if seen is None:
            seen = x
        if self.attention_norm is not None:
            seen = self.attention_norm(seen)
        self._add(self.out, self.attention_post_norm, x, self._attend(seen, rotations, slots, kv, attention))
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

    def mix(self, slots: Tensor, kv: AnyKV, attention: Attention, qkv: Tensor) -> Tensor:
        """Attention of rows of q, k and v, whose keys and values go to `slots`."""
        assert not isinstance(attention, LatentStep)
        shape = self.shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)  # of q, then k, then v
        kv.write_joined(self.index, slots, heads[:, shape.heads :].view(len(qkv), 2, shape.kv_heads, shape.head_dim))
        return attention(self.index, heads[:, : shape.heads], self.sinks).view(len(qkv), -1)

    def _attend(self, seen: Tensor, rotations: Tensor, slots: Tensor, kv: AnyKV, attention: Attention) -> Tensor:
        """What heads see, [tokens, all their numbers]."""
        if self.latent is not None:
            assert isinstance(kv, PagedKV) and isinstance(attention, LatentStep)
            return self.latent(seen, rotations, slots, kv, attention)
        qkv = self.qkv(seen)
        qk = qkv.view(len(seen), -1, self.shape.head_dim)[:, : self.shape.heads + self.shape.kv_heads]
        if self.qk_norm is not None:
            self.qk_norm(qk)
        if self.turns:
            self.rotate(qk, rotations)
        if self.unit_norm is not None:
            self.unit_norm.in_place(qk)
        if self.grows:
            qk[:, : self.shape.heads].mul_(rotations)
        return self.mix(slots, kv, attention, qkv)

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


class ResidualTaps:
    """Copies of the residual stream before some layers, of the last step; their number stands for behind all."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = layers
        self.kept: dict[int, Tensor] = {}

    def keep(self, layer: int, x: Tensor) -> None:
        """If this layer is one of them."""
        if layer in self.layers:
            self.kept[layer] = x.clone()

    def of(self, rows: Tensor | slice) -> Tensor:
        """Those of some tokens, side by side."""
        return torch.cat([self.kept[layer][rows] for layer in self.layers], -1)


class CpuModel:
    """A decoder: token ids in, logits out; it keeps weights, and its caller the KV memory."""

    reads_windows_alone = True  # of layers that see a window nothing else is read: what is behind it may be let go

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        max_length: int,
        group: TensorParallelGroup | None = None,
        deterministic: bool = False,
        four_bits: ReadFour | None = None,
        lora: LoraSites | None = None,
    ) -> None:
        """`shape` and `get` are those of this member's part, where it is one of a group; the vocabulary's is whole.

        `deterministic`: a token has the same bits in every batch, however its weights are kept. `four_bits` reads
        weights that the checkpoint has in 4 bits, where products with them can be had. With `lora` adapters may change
        its products.
        """
        self.batch_invariant = deterministic or shape.quantization.batch_invariant
        build = CpuBuilder(shape, get, dtype, group, self.batch_invariant, four_bits, lora)
        self.lora = lora
        self.group = group
        self.shape = shape
        self.kv = shape.kv
        self.dtype = dtype
        self.quantised = shape.quantization.computes_in is not None
        self.embeddings = self.read_embeddings(get)
        self.layers = [CpuLayer(build, build.layer(index), index) for index in range(shape.layers)]
        self.norm = self.make_norm(build)
        self.head = self.make_head(build)
        kinds, self.rotation_of = shape.rope_kinds()
        self.rotations = [
            growth_table(shape.growth, max_length)
            if rope is None and shape.growth is not None
            else rotation_table(rope or shape.rope, shape.turning, max_length)
            for rope in kinds
        ]
        self.embedding_scale = float(torch.tensor(shape.embedding_scale, dtype=dtype))
        self.fused = fused_layers(self)  # for steps of few tokens
        self.row_invariant = self.batch_invariant or has_native_rows(self)
        self.taps: ResidualTaps | None = None  # of who drafts by what is between layers

    def read_embeddings(self, get: Get) -> Tensor:
        """What makes numbers of token ids."""
        table = get(f"{EMBEDDINGS}.weight")  # of 16 bits it stays: its rows are made float32 when read
        return table.to(self.dtype) if table.dtype.itemsize > self.dtype.itemsize else table

    def make_norm(self, build: CpuBuilder) -> RMSNorm:
        """That of what logits are made of."""
        return build.norm(FINAL_NORM)

    def make_head(self, build: CpuBuilder) -> CpuLinear:
        """What makes logits."""
        return build.linear(self.shape.head)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Attention,
        states: StepStates | None = None,
    ) -> Tensor:
        """The last layer's output for each token of the flat batch; their keys and values go to `slots` of `kv`.

        `states` are there where `kv` of the model has some; these models have none.
        """
        x = self.embed(ids)
        if self.embedding_scale != 1:
            x.mul_(self.embedding_scale)
        adapted = self.lora is not None and bool(self.lora.parts)
        if self.fused is not None and self.taps is None and len(ids) <= FEW_TOKENS and not adapted:
            self._forward_fused(self.fused, x, positions, slots, kv, attention)
            return x
        rotations = [table[positions][:, None] for table in self.rotations]
        for number, (layer, kind) in enumerate(zip(self.layers, self.rotation_of, strict=True)):
            if self.taps is not None:
                self.taps.keep(number, x)
            layer(x, rotations[kind], slots, kv, attention)
        if self.taps is not None:
            self.taps.keep(len(self.layers), x)
        return x

    def _forward_fused(
        self, fused: PlainLayers, x: Tensor, positions: Tensor, slots: Tensor, kv: AnyKV, attention: Attention
    ) -> None:
        """A step of few tokens, at once where attention is so, too."""
        of_all = None if isinstance(attention, TabledAttention | LatentStep) else attention.of_all_layers
        if of_all is not None and of_all.pool.joined:
            fused.forward_all(x, positions, slots, of_all)
        else:
            fused.forward(x, positions, lambda index, qkv: self.layers[index].mix(slots, kv, attention, qkv))

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer is given."""
        return embed(ids, self.embeddings, self.dtype, self.group)

    @property
    def vocab_size(self) -> int:
        """How many logits there are."""
        return self.shape.vocab_size

    def attention(self, kv: PagedKV, spans: Sequence[Span]) -> AnyAttention | LatentStep:
        """That of a step of these spans."""
        return step_attention(kv, spans) if self.shape.latent is None else LatentStep(kv, spans, self.shape.latent)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of rows of the last layer's output, in float32."""
        return self.logits_of_normed(self.norm(x))

    def logits_of_normed(self, x: Tensor) -> Tensor:
        """The same of rows that the last norm has seen already."""
        own: Tensor = self.head(x).float()
        if self.shape.logits_scale != 1:
            own.mul_(self.shape.logits_scale)
        if self.shape.logits_cap is not None:
            (exact_soft_cap if self.batch_invariant else soft_cap)(own, self.shape.logits_cap)
        return own if self.group is None else self.group.all_gather(own)[:, : self.shape.vocab_size].contiguous()


def growth_table(growth: Growth, length: int) -> Tensor:
    """What queries at each position are multiplied with, [length, 1]."""
    steps = torch.floor(torch.arange(1, length + 1, dtype=torch.float32) / growth.floor)
    return (torch.log1p(steps) * growth.scale + 1.0)[:, None]


def rotation_table(rope: Rope, head_dim: int, length: int) -> Tensor:
    """cos + i·sin of each position's angles, complex64 [length, head_dim / 2]; 1 for numbers that do not turn."""
    turning = torch.complex(*cosines_and_sines(rope, head_dim, length))
    return F.pad(turning, (0, head_dim // 2 - turning.shape[1]), value=1)
