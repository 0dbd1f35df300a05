"""Weights of few bits that a GPU multiplies with, made at load of floats, as `--quantization` says.

    int8     8 bits, and a scale for each output                        the numbers of a CPU's int8
    int4     4 bits, a scale and a minimum for each 32 of a row         those of its int4
    fp8      e4m3, and a scale for each output                          those of its fp8; experts stay floats
Knows no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight, stored_weight
from actorserve.kernels.triton.moe.weights import LEAST, ExpertWeights, int4_weights, int8_weights

from ...model.architecture import Architecture
from ...model.layers import LinearSpec
from ...model.quantization import FP8, INT4, INT8, W8A8_FP8
from ..quantization import fp8, int4

SIGN = 128  # what numbers with a sign have more than they are
AT_ONCE = 1 << 24  # numbers that are rounded in one step


class RoundedBits:
    """Of linears of one model."""

    def __init__(self, shape: Architecture) -> None:
        self._round = ROUNDERS[shape.quantization.name]
        self._methods = shape.methods()

    def of(self, linears: Sequence[LinearSpec], weight: Callable[[], Tensor]) -> list[StoredWeight]:
        """The linears as one, whose floats are `weight`; none where they stay so."""
        if not all(map(self.is_quantised, linears)):
            return []
        floats = weight()
        if not floats.isfinite().all():  # of these there is no largest
            return []
        rows = max(1, AT_ONCE // max(1, floats.shape[1]))
        return [_one_behind_the_other([self._round(some) for some in floats.split(rows)])]

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether it is to have few bits."""
        return self._methods[f"{linear.name}.weight"].bytes_per_weight is not None


def _one_behind_the_other(parts: Sequence[StoredWeight]) -> StoredWeight:
    """Rows of one weight."""
    fields = {name: [part._asdict()[name] for part in parts] for name in StoredWeight._fields}
    made: dict[str, Any] = {name: torch.cat(own) for name, own in fields.items() if isinstance(own[0], Tensor)}
    return parts[0]._replace(**made)


def _int8(weight: Tensor) -> StoredWeight:
    exact = weight.float()
    scales = (exact.abs().amax(1, keepdim=True) / 127).clamp_(min=LEAST)
    return stored_weight("bits8", (exact / scales).round_() + SIGN, scales, weight.shape[1], zero=SIGN)


def _int4(weight: Tensor) -> StoredWeight:
    inputs = weight.shape[1]
    numbers, pairs = int4.rounded(F.pad(weight.float(), (0, -inputs % int4.GROUP)))
    scales, middles = pairs.transpose(0, 1).unbind(2)
    return stored_weight("bits4", numbers[:, :inputs], scales, min(int4.GROUP, inputs), zero=8, minima=-middles)


def _fp8(weight: Tensor) -> StoredWeight:
    numbers, scales = fp8.rounded(weight)
    return stored_weight("e4m3", numbers.view(torch.uint8), scales[:, None], weight.shape[1])


ROUNDERS: dict[str, Callable[[Tensor], StoredWeight]] = {
    INT8.name: _int8,
    INT4.name: _int4,
    FP8.name: _fp8,
    W8A8_FP8.name: _fp8,
}
EXPERTS: dict[str, Callable[[Tensor], ExpertWeights]] = {INT8.name: int8_weights, INT4.name: int4_weights}
