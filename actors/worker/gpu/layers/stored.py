"""Products of a model with weights in the bits that its checkpoint has, or that --quantization makes of them
(kernels/triton/linear/stored_linear.py).

Steps of more than 64 tokens need floats, which are made in memory that all products share, one after the other; or,
where that was asked for, multiply numbers of 8 bits (scaled_linear.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.scaled_linear import scaled_linear, scaled_weight
from actorserve.kernels.triton.linear.stored_linear import MOST_ROWS, stored_linear
from actorserve.kernels.triton.linear.stored_weights import StoredWeight, decoded

from ....model.layers import Axis, LinearSpec
from ...formats.as_stored import CheckpointBits
from ...quantization.base import LinearTensors


class Bits(Protocol):
    """Where weights come from: as_stored.py, gguf_bits.py and rounded.py in worker/formats."""

    def of(self, linears: Sequence[LinearSpec], weight: Callable[[], Tensor]) -> list[StoredWeight]:
        """The linears, one behind the other; none where they are to be floats. `weight`: what these would be."""

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether it was to have few bits."""


class StoredLinears:
    """Of one model."""

    def __init__(self, bits: Bits, rounds_inputs: bool = False, draws: int = MOST_ROWS + 1) -> None:
        """`rounds_inputs`: as the method of --quantization. `draws`: of how many tokens of a step logits are made."""
        self._bits, self._rounds_inputs, self._draws = bits, rounds_inputs, draws
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
        made = StoredGpuLinear(self, weights, tensors.bias(), tensors.batch_invariant, self._rounds_inputs)
        self.made.append(made)
        few = linears[0].rows == (Axis.VOCABULARY,) and self._draws <= MOST_ROWS  # the largest of all is never floats
        if not tensors.batch_invariant and not few:
            floats = (one.outputs * one.inputs for one, own in zip(weights, made.scaled, strict=True) if own is None)
            self._reserve(max(floats, default=0), tensors.dtype, device)
        return made

    def groups(self, linears: Sequence[LinearSpec]) -> Tensor | None:
        """Linears of one expert in MXFP4, as CheckpointBits has them."""
        return self._bits.groups(linears) if isinstance(self._bits, CheckpointBits) else None

    def _reserve(self, numbers: int, dtype: torch.dtype, device: torch.device) -> None:
        """At load, since graphs hold where it is; the smaller one goes first."""
        if self._floats is None or len(self._floats) < numbers:
            self._floats = None
            self._floats = torch.empty(numbers, dtype=dtype, device=device)

    @property
    def floats(self) -> Tensor | None:
        """The memory in which floats are made; none where they never are."""
        return self._floats

    def count_scaled(self) -> int:
        """How many products multiply numbers of 8 bits on both sides."""
        return sum(own is not None for linear in self.made for own in linear.scaled)

    def words(self, floats: str) -> str:
        """What became of all, for the log."""
        size = sum(weight.bytes for linear in self.made for weight in linear.weights) / 2**30
        said = f"{len(self.made)} products have weights of few bits, {size:.2f} GiB"
        if self._rounds_inputs:
            said += f", {self.count_scaled()} of them with inputs of 8 bits in steps of over {MOST_ROWS} tokens"
        if not self.others:
            return said
        return f"{said}; {len(self.others)} linears became {floats}, such as {self.others[0]}"


class StoredGpuLinear:
    """y = x Wᵀ + b, where W may be of several kinds, one behind the other."""

    def __init__(
        self,
        all_of: StoredLinears,
        weights: Sequence[StoredWeight],
        bias: Tensor | None,
        batch_invariant: bool,
        rounds_inputs: bool = False,
    ) -> None:
        self._all, self.weights, self.bias, self.batch_invariant = all_of, weights, bias, batch_invariant
        self._sizes = [weight.outputs for weight in weights]
        self.scaled = [scaled_weight(weight) if rounds_inputs else None for weight in weights]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.weights) == 1:
            return self._product(0, x, self.bias)
        out = torch.empty(len(x), sum(self._sizes), dtype=x.dtype, device=x.device)
        biases = [None] * len(self._sizes) if self.bias is None else self.bias.split(self._sizes)
        for number, (bias, own) in enumerate(zip(biases, out.split(self._sizes, 1), strict=True)):
            self._product(number, x, bias, own)
        return out

    def _product(self, number: int, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """With one of the weights."""
        scaled = self.scaled[number]
        if scaled is not None and len(x) > MOST_ROWS:
            made = scaled_linear(x, scaled, bias)
            return made if out is None else out.copy_(made)
        weight, floats = self.weights[number], self._all.floats
        if floats is not None and len(floats) < weight.outputs * weight.inputs:
            floats = None
        return stored_linear(x, weight, bias, floats, self.batch_invariant, out)

    @property
    def weight(self) -> Tensor:
        """Made anew, in float32: for who asks once, as DoRA's adapters do."""
        return torch.cat([decoded(weight) for weight in self.weights])
