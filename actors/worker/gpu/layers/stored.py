"""Products of a model with weights in the bits that its checkpoint has (kernels/triton/linear/stored_linear.py).

Steps of more than 64 tokens need floats, which are made in memory that all products share, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_linear import stored_linear
from actorserve.kernels.triton.linear.stored_weights import StoredWeight, decoded

from ....model.layers import LinearSpec
from ...formats.as_stored import CheckpointBits


class StoredLinears:
    """Of one model."""

    def __init__(self, bits: CheckpointBits) -> None:
        self._bits = bits
        self._floats: Tensor | None = None
        self.made: list[StoredGpuLinear] = []
        self.others: list[str] = []  # the names of linears that have become floats

    def of(
        self,
        linears: Sequence[LinearSpec],
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
        batch_invariant: bool,
    ) -> StoredGpuLinear | None:
        """The linears as one; None where they are to be decoded."""
        weight = self._bits.of(linears)
        if weight is None:
            self.others += [linear.name for linear in linears if self._bits.is_quantised(linear)]
            return None
        self.made.append(StoredGpuLinear(self, weight.to(device), bias, batch_invariant))
        if not batch_invariant:
            self._reserve(weight.outputs * weight.inputs, dtype, device)
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
        size = sum(linear.bits.bytes for linear in self.made) / 2**30
        said = f"{len(self.made)} products have weights as they are stored, {size:.2f} GiB"
        if not self.others:
            return said
        name = str(dtype).removeprefix("torch.")
        return f"{said}; {len(self.others)} linears became {name}, such as {self.others[0]}"


class StoredGpuLinear:
    """y = x Wᵀ + b."""

    def __init__(self, all_of: StoredLinears, bits: StoredWeight, bias: Tensor | None, batch_invariant: bool) -> None:
        self._all, self.bits, self.bias, self.batch_invariant = all_of, bits, bias, batch_invariant

    def __call__(self, x: Tensor) -> Tensor:
        return stored_linear(x, self.bits, self.bias, self._all.floats, self.batch_invariant)

    @property
    def weight(self) -> Tensor:
        """Made anew, in float32: for who asks once, as DoRA's adapters do."""
        return decoded(self.bits)
