"""Products with weights of 4 bits on a CPU (`--quantization int4`): by groups.c, or torch's operation in bfloat16.

    w = (number - 8) · scale + middle      scale and middle bfloat16 for each 32 numbers of a row, number 0 to 15
It takes 5 bits a weight where int8 takes 8, and is less exact. By groups.c one row is quicker than with 8 bits, many
are slower; by torch all are, two to ten times: for models whose 8 bits memory does not hold.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.native.linear import CHUNK, Grouped, Scales, grouped_linear

from ...options.config import ConfigError
from ..cpu.layers.native import current
from .base import CpuLinear, LinearTensors

GROUP = 32  # numbers of a row that share a scale
ROWS = 64  # that torch packs together
FEWEST = 16  # of which outputs must be a multiple
MOST = 15  # of a number
AT_ONCE = 60_000  # numbers that are rounded in one step, as in int8.py
LEAST = 1e-30  # of a scale


class Int4Linear:
    """y = x Wᵀ + b of bfloat16 x, with W in 4 bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` [outputs, inputs] in any type of floats."""
        self.outputs, inputs = weight.shape
        self.columns = -inputs % GROUP
        self.rows = -self.outputs % FEWEST
        self.bias = bias
        outputs, width = self.outputs + self.rows, inputs + self.columns
        self.weight = torch.empty(outputs, width // 2, dtype=torch.uint8)
        self.scales = torch.empty(width // GROUP, outputs, 2, dtype=torch.bfloat16)
        count = max(1, AT_ONCE // (width * ROWS)) * ROWS
        for first in range(0, outputs, count):
            some = slice(first, min(first + count, outputs))
            part = weight[some].float()
            part = F.pad(part, (0, self.columns, 0, some.stop - some.start - len(part)))
            numbers, self.scales[:, some] = rounded(part)
            self.weight[some] = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.bfloat16()
        if self.columns:
            x = F.pad(x, (0, self.columns))
        result = torch._weight_int4pack_mm_for_cpu(x.contiguous(), self.weight, GROUP, self.scales)
        if self.rows:
            result = result[:, : self.outputs]
        return (result if self.bias is None else result + self.bias).to(dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        residual.add_(self(x))


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers [rows, columns] as int32, scales and middles [groups, rows, 2]) of float32."""
    groups = weight.unflatten(1, (-1, GROUP))
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / MOST).clamp_(min=LEAST).bfloat16()
    middle = (low + (MOST // 2 + 1) * scale.float()).bfloat16()
    numbers = (groups - middle.float()[:, :, None]).div_(scale.float()[:, :, None]).round_().add_(MOST // 2 + 1)
    scales = torch.stack([scale, middle], 2).transpose(0, 1)
    return numbers.clamp_(0, MOST).flatten(1).int(), scales


def cpu_linear(tensors: LinearTensors) -> CpuLinear:
    """Of weights in any type."""
    weight, bias, library = tensors.joined("weight", None), tensors.bias(), current()
    if library is not None:
        return grouped_linear(library, grouped(weight), bias)
    if tensors.batch_invariant:
        raise ConfigError(
            "--deterministic: not with --quantization int4 and torch's kernels, which sum by the batch; int8 has it"
        )
    return Int4Linear(weight, bias)


def grouped(weight: Tensor) -> Grouped:
    """The same numbers and scales for products of our own."""
    outputs, inputs = weight.shape
    width = -(-inputs // CHUNK) * CHUNK
    numbers = torch.empty(outputs, width, dtype=torch.uint8)
    scales = torch.empty(outputs, width // GROUP, 2, dtype=torch.bfloat16)
    count = max(1, AT_ONCE // width)
    for first in range(0, outputs, count):
        some = slice(first, first + count)
        own, pairs = rounded(F.pad(weight[some].float(), (0, width - inputs)))
        numbers[some], scales[some] = own, pairs.transpose(0, 1)
    return Grouped(numbers[:, :inputs], (scales,), Scales.BFLOAT_PAIRS)
