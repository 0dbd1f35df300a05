"""Products with a weight: plain, or in the order in which oneDNN wants it."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainLinear:
    """y = x Wᵀ + b."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.t()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        residual.addmm_(x, self.weight)
        if self.bias is not None:
            residual.add_(self.bias)


class PackedLinear:
    """The same with a weight in oneDNN's own order, which plain products would make anew at every call.

    Measured (one thread, float32 of 4096 x 1024, ms for 1, 2, 8 and 32 rows): 0.26, 0.27, 0.68, 2.7 packed and 0.32,
    0.65, 1.7, 4.1 plain; below some 2^18 numbers the call itself costs more than it saves.

    Where weights come from memory, oneDNN's kernels take less for 4 rows than for fewer, and the results are the same
    bits (6144 x 1024, 1 to 6 rows: 2.07, 2.27, 1.71, 1.63, 1.63, 1.60; in bfloat16 0.96, 1.06, 0.85, 0.79, 0.86, 0.86;
    the other way round where they are in a cache, 8192 x 256: 0.33, 0.41, 0.45, 0.44).
    """

    SMALLEST = 1 << 18
    CACHED = 1 << 26  # bytes of a model that may stay in a cache
    FEWEST = 4  # rows that are multiplied with weights of a larger one

    def __init__(self, weight: Tensor, bias: Tensor | None, from_memory: bool = False) -> None:
        """`from_memory`: all weights together are larger than a cache."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.fewest = self.FEWEST if from_memory else 1

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor
        rows = len(x)
        if rows >= self.fewest:
            result = self.product(x, self.weight, self.bias, "none", [], "")
            return result
        result = self.product(F.pad(x, (0, 0, 0, self.fewest - rows)), self.weight, self.bias, "none", [], "")
        return result[:rows]

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        residual.add_(self(x))

    @staticmethod
    @cache
    def works(dtype: torch.dtype) -> bool:
        """The operations are private to torch: they are used only where they are there and agree with F.linear."""
        weight, x = torch.randn(256, 128).to(dtype), torch.randn(3, 128).to(dtype)
        try:
            result = PackedLinear(weight, None)(x)
        except (AttributeError, RuntimeError):
            return False
        tolerance = 1e-4 if dtype == torch.float32 else 0.25
        return torch.allclose(result.float(), F.linear(x, weight).float(), rtol=1e-2, atol=tolerance)


def is_large(weight: Tensor) -> bool:
    """Is it worth packing?"""
    return weight.numel() > PackedLinear.SMALLEST
