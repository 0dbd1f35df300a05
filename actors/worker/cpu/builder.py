"""Parts of a model of a checkpoint's tensors, in the order of rows in which a CPU computes with them.

In the checkpoint number i of the n that turn in a head is rotated with number i + n / 2. Rows of the q and k weights
are put in another order at load, so that such pairs lie side by side: a rotation is then one complex multiplication
(by 1 for numbers that do not turn), and as queries and keys are reordered alike, their products are what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import Grouped

from ...model.architecture import Architecture
from ...model.layers import HEAD, ROTATED, LayerSpec, LinearSpec
from ...model.quantization import NONE
from ..formats.grouped import ReadGrouped
from ..formats.grouped import joined as join_grouped
from ..lora.sites import LoraSites
from ..models.sharding import Get
from ..models.tensors import join, split_rows
from ..quantization.base import CpuLinear, LinearTensors, implementation_of
from ..tensor_parallel import TensorParallelGroup
from ..weight_cache.cache import WeightCache
from .layers.linear import PackedLinear, is_large
from .layers.native import current
from .layers.norm import RMSNorm

if TYPE_CHECKING:
    from ..lora.latents import LoraLatent


class CpuBuilder:
    """Makes the parts of a model of a checkpoint's tensors, one after the other."""

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        group: TensorParallelGroup | None,
        batch_invariant: bool,
        grouped: ReadGrouped | None = None,
        lora: LoraSites | None = None,
        cache: WeightCache | None = None,
    ) -> None:
        """`dtype` is --dtype's; where that is bfloat16, and our own kernels multiply it, all else is float32.

        `lora`: where products are kept that adapters may change; `cache`: those that an earlier start has made.
        """
        library = current()
        self.in_bfloat16 = dtype == torch.bfloat16 and library is not None and library.multiplies_bfloat16
        self.shape = shape
        self.grouped = grouped
        self.lora = lora
        self.cache = cache
        self.get = get
        self.dtype = torch.float32 if self.in_bfloat16 else dtype
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
        name = " ".join(linear.name for linear in linears)
        found = None if self.cache is None else self.cache.find(name)
        method, joined = self.shape.method_of(*linears), partial(self._joined, linears)
        tensors = LinearTensors(
            joined,
            self.dtype,
            bool(linears[0].bias),
            self.from_memory,
            self.shape.row_scales(*linears),
            few_rows,
            self.batch_invariant,
            self._grouped(linears) if found is None else (),
            self.in_bfloat16,
        )
        made = found or implementation_of(method).cpu_linear(tensors)
        if self.cache is not None:
            self.cache.keep(name, made)
        if self.lora is None:
            return made
        if linears[0].name == self.shape.head.name:
            return self.lora.wrap_head(made, HEAD)
        return self.lora.wrap(made, [linear.name for linear in linears], tensors.bias())

    def latent_up(self, linear: LinearSpec) -> LoraLatent | None:
        """Where adapters change what makes keys and values of a latent."""
        if self.lora is None or self.shape.latent is None:
            return None
        from ..lora.latents import LoraLatent

        return LoraLatent(self.lora, linear.name, self.shape.heads, self.shape.latent.plain)

    def _grouped(self, linears: Sequence[LinearSpec]) -> list[Grouped]:
        """Those of a checkpoint, where all of the linears are so."""
        if self.grouped is None:
            return []
        parts = [self.grouped(linear.name) for linear in linears]
        return join_grouped(parts, lambda number, rows: join(list(self._arranged([linears[number]], [rows])), None))

    def router(self, linear: LinearSpec, float32: bool = False) -> CpuLinear:
        """A product that is never quantised: it has few rows, and all hangs on it. `float32`: it is of such rows."""
        joined, dtype = partial(self._joined, [linear]), torch.float32 if float32 else self.dtype
        tensors = LinearTensors(joined, dtype, bool(linear.bias), batch_invariant=self.batch_invariant)
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
