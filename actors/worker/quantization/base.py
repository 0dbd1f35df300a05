"""What a weight format does with tensors on a CPU: `cpu_linear`, in the module that its QuantMethod names.

It is given a linear layer's tensors as the executor wants their rows: q, k and v as one, gate and up as one, of a group
of workers this member's part. On a GPU one kernel multiplies with all formats (worker/formats/rounded.py and others).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import Grouped

from ...model.quantization import QuantMethod


class CpuLinear(Protocol):
    """y = x Wᵀ + b on a CPU."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""


class GpuLinear(Protocol):
    """y = x Wᵀ + b on a GPU; a graph may capture it, so that it must not wait for the device."""

    def __call__(self, x: Tensor) -> Tensor: ...


class LinearTensors(NamedTuple):
    """Of one linear layer, which may be several of the checkpoint."""

    # all rows of `weight`, `bias` or what else the format has, in a type; None: as they are stored
    joined: Callable[[str, torch.dtype | None], Tensor]
    dtype: torch.dtype  # that is computed in
    biased: bool
    from_memory: bool = False  # all weights of the model together are larger than a cache
    scales: str | None = None  # what has the scales of rows, where the checkpoint has whole numbers of 8 bits
    few_rows: bool = False  # it mostly multiplies one row or two
    batch_invariant: bool = False  # a row must have the same bits in every batch
    grouped: Sequence[Grouped] = ()  # what the checkpoint has, where products with it as it is can be had
    in_bfloat16: bool = False  # by our own kernels: both factors are rounded to it, whatever is computed in

    def weight(self) -> Tensor:
        """[outputs, inputs]."""
        return self.joined("weight", self.dtype)

    def row_scales(self) -> Tensor | None:
        """[outputs]: each weight is one of -128 to 127 of these."""
        return None if self.scales is None else self.joined(self.scales, torch.float32)

    def bias(self) -> Tensor | None:
        """[outputs]."""
        return self.joined("bias", self.dtype) if self.biased else None


class QuantImplementation(Protocol):
    """The module of a format."""

    def cpu_linear(self, tensors: LinearTensors) -> CpuLinear: ...


def implementation_of(method: QuantMethod) -> QuantImplementation:
    """The module that a method's record names."""
    return cast(QuantImplementation, importlib.import_module(method.implementation))
