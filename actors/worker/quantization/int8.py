"""Products with weights of 8 bits on a CPU (`--quantization int8`): a quarter of the bytes, and integer instructions.

    y = amax(x) / n · s · (round(n · x / amax(x)) · Wᵢ),    Wᵢ = round(W / s),    s = amax(W) / 127 for each output
n is 127, or with torch 63 where products of pairs would not fit. Each row is rounded by its own largest number, to
whole numbers; two more columns, n and -n - 1, whose weights are 0, tell torch that range for all batches, so that it
rounds nothing itself (it would by the smallest and largest number of the whole batch). Sums are integers: a row's
result is the same in every batch, bit for bit. A row that is no number makes none of another.

All products of a model are such: one in float32 between them would have other bits for one row than for four, and
rounding makes a whole step of the least difference.

Measured (one thread, AVX-512 with VNNI, 4096 x 1024, ms for 1, 8 and 32 rows, busy machine): 0.19, 0.67, 1.5; in
float32 2.9, 5.9, 6.3.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import MOST_INPUTS, grouped_linears, int8_linear

from ...model.memory.machine import cpu_flags
from ..cpu.layers.native import current
from .base import CpuLinear, LinearTensors

LARGEST = 127
PADDING = 16  # columns more: two are used, and rows stay in line
VNNI = {"avx512_vnni", "avx_vnni", "asimddp"}  # without such instructions sums of two products have 16 bits
AT_ONCE = 60_000  # numbers that are rounded in one step: of more, malloc would ask the kernel for new pages each time
TINY = torch.finfo(torch.float32).tiny
LEAST = 1e-30  # for a row's largest number; what is less is 0


class Int8Linear:
    """y = x Wᵀ + b of float32 x, with W in 8 bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> None:
        """`weight` [outputs, inputs] in any type of floats; `scales` of which its rows are whole numbers already."""
        self.inputs = weight.shape[1]
        self.bias = bias
        self.steps = steps_of_rows()
        self.reduce_range = self.steps < LARGEST
        self.range = torch.zeros(PADDING)
        self.range[0], self.range[1] = self.steps, -self.steps - 1
        whole = torch.zeros(len(weight), self.inputs + PADDING, dtype=torch.int8)
        steps = round_into(whole, weight, scales)
        zeros = torch.zeros(len(steps), dtype=torch.long)
        packed = torch._make_per_channel_quantized_tensor(whole, steps, zeros, 0)
        with warnings.catch_warnings(action="ignore"):  # torch means to drop it: setup.cfg bounds torch's version
            self.weight = torch.ops.quantized.linear_prepack(packed, None)
        self.product = torch.ops.quantized.linear_dynamic.default

    def __call__(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True).clamp_(min=LEAST).div_(self.steps)
        whole = x.new_empty(len(x), self.inputs + PADDING)
        inputs = whole[:, : self.inputs]
        torch.div(x, step, out=inputs)
        inputs.nan_to_num_(0.0).round_()
        whole[:, self.inputs :] = self.range
        result: Tensor = self.product(whole, self.weight, self.reduce_range).mul_(step)
        return result if self.bias is None else result.add_(self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        residual.add_(self(x))


def round_into(whole: Tensor, weight: Tensor, scales: Tensor | None) -> Tensor:
    """The first columns of `whole`, of 8 bits, become the weight; gives the scale of each row. Some rows at a time are
    rounded, for as float32 it may be large."""
    rows, inputs = weight.shape
    steps = torch.empty(rows, dtype=torch.double)
    zeros = torch.zeros(rows, dtype=torch.long)
    count = max(1, AT_ONCE // inputs)
    for first in range(0, rows, count):
        some = slice(first, first + count)
        part = weight[some].float()
        own = part.abs().amax(1) / LARGEST if scales is None else scales[some]
        steps[some] = own.clamp(min=TINY)
        with warnings.catch_warnings(action="ignore"):  # torch means to drop it, too
            quantised = torch.quantize_per_channel(part, steps[some], zeros[some], 0, torch.qint8)
        whole[some, :inputs] = quantised.int_repr()
    return steps


def steps_of_rows() -> int:
    """Whole numbers that a row takes, on each side of 0."""
    return LARGEST if cpu_flags() & VNNI else LARGEST // 2


def cpu_linear(tensors: LinearTensors) -> CpuLinear:
    """Of weights in any type; those that the checkpoint has in groups stay so."""
    library, bias = current(), tensors.bias()
    if library is not None and tensors.grouped:
        return grouped_linears(library, tensors.grouped, bias)
    weight, scales = tensors.joined("weight", None), tensors.row_scales()
    inputs = weight.shape[1]
    if library is None or inputs > MOST_INPUTS:
        return Int8Linear(weight, bias, scales)
    numbers = torch.empty(weight.shape, dtype=torch.int8)
    return int8_linear(library, numbers, round_into(numbers, weight, scales), bias)
