"""Products of a model with weights in the bits that its checkpoint has, or that --quantization makes of them
(kernels/triton/linear/stored_linear.py).

Steps of more than 64 tokens need floats, which are made in memory that all products share, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_linear import stored_linear
from actorserve.kernels.triton.linear.stored_weights import StoredWeight, decoded

from ....model.layers import LinearSpec
from ...quantization.base import LinearTensors


class Bits(Protocol):
    """Where weights come from: as_stored.py, gguf_bits.py and rounded.py in worker/formats."""

    def of(self, linears: Sequence[LinearSpec], weight: Callable[[], Tensor]) -> list[StoredWeight]:
        """The linears, one behind the other; none where they are to be floats. `weight`: what these would be."""

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether it was to have few bits."""


class StoredLinears:
    """Of one model."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self._floats: Tensor | None = None
        self.made: list[StoredGpuLinear] = []
        self.others: list[str] = []  # the names of linears that have become floats

    def of(
        self,
        linears: Sequence[LinearSpec],
        tensors: LinearTensors,
        device: torch.device,
    ) -> StoredGpuLinear | None:
        """The linears as one; None where they are to be floats."""
        weights = [weight.to(device) for weight in self._bits.of(linears, tensors.weight)]
        if not weights:
            self.others += [linear.name for linear in linears if self._bits.is_quantised(linear)]
            return None
        self.made.append(StoredGpuLinear(self, weights, tensors.bias(), tensors.batch_invariant))
        if not tensors.batch_invariant:
            self._reserve(max(weight.outputs * weight.inputs for weight in weights), tensors.dtype, device)
        return self.made[-1]

    def _reserve(self, numbers: int, dtype: torch.dtype, device: torch.device) -> None:
        """At load, since graphs hold where it is; the smaller one goes first."""
        if self._floats is None or len(self._floats) < numbers:
            self._floats = None
            self._floats = torch.empty(numbers, dtype=dtype, device=device)

    @property
    def floats(self) -> Tensor | None:
        """The memory in which floats are made; none where they never are."""
        return self._floats

    def words(self, dtype: torch.dtype) -> str:
        """What became of all, for the log."""
        size = sum(weight.bytes for linear in self.made for weight in linear.weights) / 2**30
        said = f"{len(self.made)} products have weights of few bits, {size:.2f} GiB"
        if not self.others:
            return said
        name = str(dtype).removeprefix("torch.")
        return f"{said}; {len(self.others)} linears became {name}, such as {self.others[0]}"


class StoredGpuLinear:
    """y = x Wᵀ + b, where W may be of several kinds, one behind the other."""

    def __init__(
        self, all_of: StoredLinears, weights: Sequence[StoredWeight], bias: Tensor | None, batch_invariant: bool
    ) -> None:
        self._all, self.weights, self.bias, self.batch_invariant = all_of, weights, bias, batch_invariant
        self._sizes = [weight.outputs for weight in weights]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.weights) == 1:
            return stored_linear(x, self.weights[0], self.bias, self._all.floats, self.batch_invariant)
        out = torch.empty(len(x), sum(self._sizes), dtype=x.dtype, device=x.device)
        biases = [None] * len(self._sizes) if self.bias is None else self.bias.split(self._sizes)
        for weight, bias, own in zip(self.weights, biases, out.split(self._sizes, 1), strict=True):
            stored_linear(x, weight, bias, self._all.floats, self.batch_invariant, own)
        return out

    @property
    def weight(self) -> Tensor:
        """Made anew, in float32: for who asks once, as DoRA's adapters do."""
        return torch.cat([decoded(weight) for weight in self.weights])
