"""What an adapter adds to one product on a CPU, for the rows that have it: B(A x); with DoRA, W x of another length.

Scales are in B. By kernels of our own where there are some, whose rows do not depend on each other; numbers that come
to the model in float32 stay so, whatever the weights of the model are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import FLOATS, NativeLinear, Weights, side_by_side_weight
from actorserve.kernels.cpu.native.lora import LoraFactors

from ...model.lora.adapter import AdapterError
from ..cpu.batch_invariant import BatchInvariantLinear
from ..cpu.layers.linear import PackedLinear, PlainLinear
from ..cpu.layers.native import current
from ..quantization.base import CpuLinear

Keep = Callable[[Tensor], Tensor]  # a copy of a tensor, in the memory of its adapter


class LoraProduct:
    """Of one adapter and one product, which may be several linear layers side by side."""

    def __init__(self, gain: Tensor | None) -> None:
        """`gain` [outputs] of DoRA is what W x is multiplied with, less 1: B has it already."""
        self.gain = gain

    def lengthen(self, y: Tensor, made: Tensor, bias: Tensor | None) -> None:
        """y += gain · (made - bias), of rows `made` of the product itself, which may be y."""
        if self.gain is None:
            return
        y.add_((made.clone() if bias is None else made - bias).mul_(self.gain))


class NativeLoraProduct(LoraProduct):
    """By kernels of our own, for all adapters of a step at once (LoraSites)."""

    def __init__(self, factors: LoraFactors, gain: Tensor | None) -> None:
        super().__init__(gain)
        self.factors = factors


class TorchLoraProduct(LoraProduct):
    """By torch, or what takes its place where a row must not see others."""

    def __init__(
        self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None = None, batch_invariant: bool = False
    ) -> None:
        """`a` [ranks, inputs] of all layers; `parts` [outputs, rank] of each, which may have no ranks.

        One B with those of all layers on its diagonal would be one call, and mostly zeros. Measured (Qwen3-0.6B's
        shape, rank 16, 8 rows of 4 adapters, one thread): a step took 26 % more with it, and 21 % without.
        """
        super().__init__(gain)
        make = BatchInvariantLinear if batch_invariant else PlainFloatLinear
        self.a: CpuLinear = make(a, None)
        self._parts: list[tuple[CpuLinear, slice, slice]] = []  # B, its ranks, its columns of y
        rank = column = 0
        for part in parts:
            outputs, ranks = part.shape
            if ranks:
                columns = slice(column, column + outputs)
                self._parts.append((make(part, None), slice(rank, rank + ranks), columns))
            rank, column = rank + ranks, column + outputs
        self._whole = len(self._parts) == len(parts) == 1

    def add(self, y: Tensor, x: Tensor) -> None:
        """y += B(A x)."""
        inner = self.a(x if x.dtype == torch.float32 else x.float())
        for b, ranks, columns in self._parts:
            if self._whole:
                b.add_to(y, inner)
            else:
                y[:, columns].add_(b(inner[:, ranks].contiguous()))


def lora_product(
    a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, keep: Keep, batch_invariant: bool
) -> LoraProduct:
    """By our own kernels where there are some. See LoraFactors."""
    if current() is not None:
        return NativeLoraProduct(LoraFactors(a, parts, keep), gain)
    return TorchLoraProduct(keep(a), [keep(part) for part in parts], gain, batch_invariant)


def bias_of(product: object) -> Tensor | None:
    """The bias of a product of any kind."""
    found: Tensor | None = getattr(product, "bias", None)
    return found


def weight_of(product: object) -> Tensor:
    """The weight [outputs, inputs] of a product, as it multiplies. AdapterError where its kind does not tell."""
    if isinstance(product, NativeLinear):
        if product.data.kind in FLOATS.values() and product.weight is not None:
            return product.weight
        if product.data.kind in (Weights.INT_8, Weights.BOTH_BFLOAT_16):
            return side_by_side_weight(product)
        if product.data.kind == Weights.GROUPED:
            return _multiplied(product)
    elif isinstance(product, PackedLinear):
        packed: Tensor = product.weight.to_dense()
        return packed
    elif isinstance(product, PlainLinear):
        return product.weight.t()
    elif (own := getattr(product, "weight", None)) is not None and own.dim() == 2 and own.is_floating_point():
        return torch.as_tensor(own)
    raise AdapterError("use_dora is not supported for weights of this kind in memory; --quantization none has others")


def _multiplied(product: NativeLinear) -> Tensor:
    """The weight [outputs, inputs], of products of rows with one number each, which loses nothing of it.

    A thread that reads an adapter asks for it, while steps are computed.
    """
    made = product.apart(torch.eye(product.inputs))
    return (made if product.bias is None else made - product.bias).T.contiguous()


class PlainFloatLinear(PlainLinear):
    """Adds to rows of any type."""

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        if residual.dtype == x.dtype:
            super().add_to(residual, x)
        else:
            residual.add_(self(x))
