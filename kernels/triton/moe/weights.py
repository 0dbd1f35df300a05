"""Weights of all experts of a layer in one tensor, as the grouped product (experts.py) reads them.

    floats   [experts, outputs, inputs]                                 in the type that is multiplied
    int8     [experts, outputs, inputs]        w = number · scale       a scale for each output
    int4     [experts, outputs, padded / 2]    w = (number - 8) · scale + middle, both for each 32 numbers of a row
    mxfp4    [experts, outputs, padded / 2]    w = e2m1(number) · 2^(scale - 127), a scale of 8 bits for each 32
Rows of 4 bits are filled up to a multiple of 128 numbers. Of each 128 a byte has number i in its lower half and number
64 + i in the upper one, so that both halves of a tile multiply numbers that lie side by side, and nothing is shuffled.
Knows tensors only; no kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32  # numbers of a row that share a scale
HALF = 64  # numbers that lie in the same half of bytes
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of floats of 4 bits, without their sign
LEAST = 1e-30  # of a scale


class ExpertWeights(NamedTuple):
    """Of one product."""

    numbers: Tensor
    inputs: int
    scales: Tensor | None = None  # float32 [experts, outputs], or [experts, outputs, padded / 32]: uint8, or bfloat16
    middles: Tensor | None = None  # bfloat16, as the scales of int4
    bias: Tensor | None = None  # floats [experts, outputs]

    @property
    def format(self) -> str:
        """Its name above."""
        if self.scales is None:
            return "floats"
        if self.numbers.dtype == torch.int8:
            return "int8"
        return "mxfp4" if self.middles is None else "int4"

    def check(self, dtype: torch.dtype) -> None:
        """ValueError if it is none of those, for inputs of this type."""
        numbers, form = self.numbers, self.format
        width = self.inputs if form in ("floats", "int8") else padded(self.inputs) // 2
        kind = {"floats": dtype, "int8": torch.int8}.get(form, torch.uint8)
        if numbers.dim() != 3 or numbers.shape[2] != width or numbers.dtype != kind or not numbers.is_contiguous():
            raise ValueError(f"weights {numbers.dtype}{list(numbers.shape)} are no {form} of {self.inputs} inputs")
        groups = numbers.shape[:2] if form == "int8" else (*numbers.shape[:2], 2 * width // GROUP)
        own = {"int8": torch.float32, "int4": torch.bfloat16, "mxfp4": torch.uint8}.get(form)
        for name, part in (("scales", self.scales), ("middles", self.middles)):
            if part is not None and (part.shape != groups or part.dtype != own or not part.is_contiguous()):
                raise ValueError(f"{name} {part.dtype}{list(part.shape)} do not fit {form} {list(numbers.shape)}")
        bias = self.bias
        if bias is not None and (bias.shape != numbers.shape[:2] or bias.dtype not in FLOATS):
            raise ValueError(f"bias {bias.dtype}{list(bias.shape)} does not fit weights {list(numbers.shape)}")


def padded(inputs: int) -> int:
    """To how many numbers rows of 4 bits are filled up."""
    return -(-inputs // (2 * HALF)) * 2 * HALF


def packed(numbers: Tensor) -> Tensor:
    """Bytes [..., padded / 2] of numbers 0 to 15 [..., inputs]; what fills up is 0."""
    filled = F.pad(numbers.to(torch.uint8), (0, padded(numbers.shape[-1]) - numbers.shape[-1]))
    low, high = filled.unflatten(-1, (-1, 2, HALF)).unbind(-2)
    both: Tensor = low | high << 4
    return both.flatten(-2)


def int8_weights(weight: Tensor, bias: Tensor | None = None) -> ExpertWeights:
    """Of floats [experts, outputs, inputs], each output by its largest weight."""
    exact = weight.float()
    scales = (exact.abs().amax(-1) / 127).clamp_(min=LEAST)
    numbers = (exact / scales[..., None]).round_().to(torch.int8)
    return ExpertWeights(numbers, weight.shape[-1], scales, None, bias)


def int4_weights(weight: Tensor, bias: Tensor | None = None) -> ExpertWeights:
    """Of floats [experts, outputs, inputs], each 32 of a row by the smallest and largest of them."""
    inputs = weight.shape[-1]
    groups = F.pad(weight.float(), (0, padded(inputs) - inputs)).unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).clamp_(min=LEAST).bfloat16()
    middles = (low + 8 * scales.float()).bfloat16()
    numbers = ((groups - middles.float()[..., None]) / scales.float()[..., None]).round_().add_(8).clamp_(0, 15)
    return ExpertWeights(packed(numbers.flatten(-2)), inputs, scales, middles, bias)


def mxfp4_weights(blocks: Tensor, scales: Tensor, bias: Tensor | None = None) -> ExpertWeights:
    """Of a checkpoint's bytes [experts, outputs, inputs / 32, 16], the first number of each pair in the lower half, and
    scales [experts, outputs, inputs / 32]."""
    pairs = blocks.flatten(-2)
    numbers = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)
    inputs = numbers.shape[-1]
    filled = F.pad(scales, (0, padded(inputs) // GROUP - scales.shape[-1])).contiguous()
    return ExpertWeights(packed(numbers), inputs, filled, None, bias)


def as_mxfp4(weight: Tensor, bias: Tensor | None = None) -> ExpertWeights:
    """Of floats [experts, outputs, inputs], each to the nearest; numbers that were of this format stay what they are.

    The scale is the smallest with which the largest of 32 fits: where another one had made these numbers, they are
    twice as many steps of half the size, or as many as that often over.
    """
    inputs = weight.shape[-1]
    groups = F.pad(weight.float(), (0, padded(inputs) - inputs)).unflatten(-1, (-1, GROUP))
    part, power = torch.frexp(groups.abs().amax(-1) / LEVELS[-1])  # amax / 6 is part * 2^power, part from 1/2 to 1
    power = (power - (part == 0.5).int()).clamp_(-126, 127)
    levels = torch.tensor(LEVELS, device=weight.device)
    edges = (levels[1:] + levels[:-1]) / 2
    numbers = torch.bucketize(torch.ldexp(groups.abs(), -power[..., None]), edges).to(torch.uint8)
    numbers |= (groups < 0).to(torch.uint8) << 3
    return ExpertWeights(packed(numbers.flatten(-2)), inputs, (power + 127).to(torch.uint8), None, bias)
