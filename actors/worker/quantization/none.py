"""Weights in the type that is computed in."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.native.linear import bfloat16_linear, float_linear

from ..cpu.batch_invariant import BatchInvariantLinear
from ..cpu.layers.linear import PackedLinear, PlainLinear, is_large
from ..cpu.layers.native import current
from .base import CpuLinear, GpuLinear, LinearTensors


class CublasLinear(NamedTuple):
    """y = x Wᵀ + b."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class BatchInvariantGpuLinear(NamedTuple):
    """The same by tiles that do not depend on the number of rows."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        from actorserve.kernels.triton.linear.fixed_linear import fixed_linear  # a worker of a CPU may have no triton

        return fixed_linear(x, self.weight, self.bias)


class Float32Linear(NamedTuple):
    """y = x Wᵀ on a GPU, in float32 also where x and W are narrower, whose products are exact in it."""

    weight: Tensor
    batch_invariant: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.batch_invariant:
            from actorserve.kernels.triton.linear.fixed_linear import fixed_linear

            return fixed_linear(x, self.weight, wide=True)
        if x.is_cuda and x.dtype != torch.float32:  # without a copy of the weight; torch has it for CUDA alone
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return F.linear(x.float(), self.weight.float())


def cpu_linear(tensors: LinearTensors) -> CpuLinear:
    """In oneDNN's order where that is quicker, or has to be."""
    library = current()
    if library is not None and tensors.in_bfloat16:
        return bfloat16_linear(library, tensors.joined("weight", torch.bfloat16), tensors.bias())
    if library is not None and tensors.dtype == torch.float32:  # a narrower one is widened as it is multiplied
        return float_linear(library, library.weights.copied(tensors.joined("weight", None)), tensors.bias())
    weight, bias = tensors.weight(), tensors.bias()
    if tensors.batch_invariant:
        return BatchInvariantLinear(weight, bias)
    slower = tensors.few_rows and tensors.dtype == torch.float32  # see experts.py
    if is_large(weight) and PackedLinear.works(tensors.dtype) and not slower:
        return PackedLinear(weight, bias, tensors.from_memory)
    return PlainLinear(weight, bias)


def gpu_linear(tensors: LinearTensors) -> GpuLinear:
    """By cuBLAS, which sums by the number of rows in one order or another."""
    own = BatchInvariantGpuLinear if tensors.batch_invariant else CublasLinear
    return own(tensors.weight(), tensors.bias())
