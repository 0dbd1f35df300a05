"""What an adapter adds to one product on a CPU, for the rows that have it: B(A x); with DoRA, W x of another length.

Scales are in B. By kernels of our own where there are some, whose rows do not depend on each other; numbers that come
to the model in float32 stay so, whatever the weights of the model are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import FLOATS, NativeLinear, Weights, float_linear, int8_weight

from ...model.lora.adapter import AdapterError
from ..cpu.batch_invariant import BatchInvariantLinear
from ..cpu.layers.linear import PackedLinear, PlainLinear
from ..cpu.layers.native import current
from ..quantization.base import CpuLinear


class LoraProduct:
    """Of one adapter and one product, which may be several linear layers side by side."""

    def __init__(
        self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None = None, batch_invariant: bool = False
    ) -> None:
        """`a` [ranks, inputs] of all layers; `parts` [outputs, rank] of each, which may have no ranks. `gain` [outputs]
        of DoRA is what W x is multiplied with, less 1: `parts` have it already.

        One B with those of all layers on its diagonal would be one call, and mostly zeros. Measured (Qwen3-0.6B's
        shape, rank 16, 8 rows of 4 adapters, one thread; tools/bench/lora): a step took 26 % more with it, and takes
        21 % without.
        """
        make = _product(batch_invariant)
        self.a = make(a)
        self.gain = gain
        self._parts: list[tuple[CpuLinear, slice, slice]] = []  # B, its ranks, its columns of y
        rank = column = 0
        for part in parts:
            outputs, ranks = part.shape
            if ranks:
                columns = slice(column, column + outputs)
                self._parts.append((make(part.contiguous()), slice(rank, rank + ranks), columns))
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

    def lengthen(self, y: Tensor, made: Tensor, bias: Tensor | None) -> None:
        """y += gain · (made - bias), of rows `made` of the product itself, which may be y."""
        if self.gain is None:
            return
        y.add_((made.clone() if bias is None else made - bias).mul_(self.gain))


def bias_of(product: object) -> Tensor | None:
    """The bias of a product of any kind."""
    found: Tensor | None = getattr(product, "bias", None)
    return found


def weight_of(product: object) -> Tensor:
    """The weight [outputs, inputs] of a product, as it multiplies. AdapterError where its kind does not tell."""
    if isinstance(product, NativeLinear):
        if product.data.kind in FLOATS.values() and product.weight is not None:
            return product.weight
        if product.data.kind == Weights.INT_8:
            return int8_weight(product)
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
    """The weight [outputs, inputs], of products of rows with one number each, which loses nothing of it."""
    made = product(torch.eye(product.inputs))
    return (made if product.bias is None else made - product.bias).T.contiguous()


def _product(batch_invariant: bool) -> Callable[[Tensor], CpuLinear]:
    library = current()
    if library is not None:
        return lambda weight: float_linear(library, weight, None)
    if batch_invariant:
        return lambda weight: BatchInvariantLinear(weight, None)
    return lambda weight: PlainFloatLinear(weight)


class PlainFloatLinear(PlainLinear):
    """Adds to rows of any type."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight, None)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        if residual.dtype == x.dtype:
            super().add_to(residual, x)
        else:
            residual.add_(self(x))
