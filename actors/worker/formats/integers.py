"""Weights of whole numbers and scales: w = (number - zero) · scale, in float32 [rows, columns]. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...model.formats.stored import WHOLE, WORD, AffineWeight, AwqWeight, GptqWeight, PackedWeight, ScaledWeight

Tensors = Mapping[str, Tensor]  # by what comes after the layer's name
BIAS = 127  # of exponents of 8 bits
AT_ONCE = 1 << 20  # numbers that are unpacked in one step
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the numbers 0 to 7 lie in a word


class Affine(NamedTuple):
    """w = (number - zero) · scale."""

    numbers: Tensor  # [rows, columns], uint8
    scales: Tensor  # [rows, groups], as the zero points
    zeros: Tensor
    group: int
    order: Tensor | None  # the group of each column, where they are not in turn


def packed_parts(form: PackedWeight, stored: Tensors, rows: int, columns: int) -> Affine:
    """Numbers are stored without sign, half their range more than they are, and so are zero points."""
    half = 1 << (form.bits - 1)
    numbers = unpacked(stored["weight_packed"], form.bits)[:, :columns]
    scales = stored["weight_scale"].view(rows, -1)
    if form.symmetric:
        zeros = scales.new_full((1, scales.shape[1]), half, dtype=torch.float32).expand(scales.shape)
    else:
        zeros = unpacked(stored["weight_zero_point"].t().contiguous(), form.bits)[:, :rows].t().float()
    return Affine(numbers, scales, zeros, form.group, stored.get("weight_g_idx"))


def gptq_parts(form: GptqWeight, stored: Tensors, rows: int, columns: int) -> Affine:
    """A zero point that is stored one less wraps around: all bits set are 0."""
    numbers = unpacked(stored["qweight"].t().contiguous(), form.bits)[:, :columns]
    zeros = unpacked(stored["qzeros"], form.bits)[:, :rows].add_(form.zero_less).bitwise_and_((1 << form.bits) - 1)
    return Affine(numbers, stored["scales"].t(), zeros.t().float(), form.group, stored.get("g_idx"))


def awq_parts(form: AwqWeight, stored: Tensors, rows: int, columns: int) -> Affine:
    """In each word of 8 numbers, they are shuffled."""
    numbers, zeros = (unpacked(stored[name], 4, AWQ_ORDER)[:, :rows].t() for name in ("qweight", "qzeros"))
    return Affine(numbers, stored["scales"].t(), zeros.float(), form.group, None)


def packed(form: PackedWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    return affine(*packed_parts(form, stored, rows, columns))


def gptq(form: GptqWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    return affine(*gptq_parts(form, stored, rows, columns))


def awq(form: AwqWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    return affine(*awq_parts(form, stored, rows, columns))


def added(form: AffineWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """w = number · scale + bias."""
    numbers = unpacked(stored["weight"].view(torch.int32), form.bits)[:, :columns].float()
    scales, biases = (spread(stored[name].float(), form.group, columns) for name in ("scales", form.added))
    return numbers.mul_(scales).add_(biases)


def scaled(form: ScaledWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """A scale for each block of rows and columns; the last blocks may be cut off."""
    numbers = stored[form.weight].float()
    height, width = (form.block[0] or rows), (form.block[1] or columns)
    scale = stored[form.scale] if form.scale in stored or form.other_name is None else stored[form.other_name]
    grid = -(-rows // height), -(-columns // width)
    scale = scale_numbers(scale).div(form.divisor).view(grid)
    zero = None if form.zero is None or form.zero not in stored else stored[form.zero].float().view(grid)
    bands = 1 if height == 1 else grid[0]  # what is done at once has a scale for each row, or one for all
    parts = numbers.split(rows if bands == 1 else height)
    for part, own, zeros in zip(parts, *_by_band(bands, scale, zero), strict=True):
        if zeros is not None:
            part.sub_(spread(zeros, width, columns))
        part.mul_(spread(own, width, columns))
    return numbers


def scale_numbers(stored: Tensor) -> Tensor:
    """Scales as float32, which may be stored as exponents of 2."""
    if stored.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return torch.ldexp(torch.ones(stored.shape, device=stored.device), stored.view(torch.uint8).int() - BIAS)
    return stored.float()


def _by_band(bands: int, scale: Tensor, zero: Tensor | None) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    return scale.tensor_split(bands), [None] * bands if zero is None else zero.tensor_split(bands)


def affine(numbers: Tensor, scales: Tensor, zeros: Tensor, group: int, order: Tensor | None) -> Tensor:
    """(numbers - zeros) · scales, these [rows, groups]; `order` says the group of each column, where not in turn."""
    columns = numbers.shape[1]
    if order is not None:
        index = order.long()
        return numbers.float().sub_(zeros[:, index]).mul_(scales.float()[:, index])
    width = columns if group == WHOLE else group
    return numbers.float().sub_(spread(zeros, width, columns)).mul_(spread(scales.float(), width, columns))


def spread(values: Tensor, width: int, columns: int) -> Tensor:
    """Each of [rows, groups] for all columns of its group."""
    if values.shape[1] == 1:
        return values
    return values.repeat_interleave(width, 1)[:, :columns]


def unpacked(words: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """The numbers without sign in words of 32 bits [rows, words], as uint8. The first are in the lowest bits, or where
    in a word `order` says.

    Some rows at a time, since for a moment each number takes several times what it takes in the end.
    """
    count = words.shape[1] * WORD // bits
    numbers = torch.empty(len(words), count, dtype=torch.uint8, device=words.device)
    parts = _across_words if WORD % bits else _within_words
    places = torch.arange(count if WORD % bits else WORD // bits) if order is None else torch.tensor(order)
    first = (places * bits).to(words.device)
    step = max(1, AT_ONCE // max(1, count))
    for at in range(0, len(words), step):
        numbers[at : at + step] = parts(words[at : at + step], first).bitwise_and_((1 << bits) - 1)
    return numbers


def _within_words(words: Tensor, first: Tensor) -> Tensor:
    """Numbers with others' bits above their own; `first`: the lowest bit of each in a word."""
    return (words[:, :, None] >> first.int()).flatten(1)


def _across_words(words: Tensor, first: Tensor) -> Tensor:
    """The same of a row, where numbers go on from one word to the next."""
    low, shift = first // WORD, first % WORD
    wide = F.pad(words, (0, 1)).long().bitwise_and_((1 << WORD) - 1)
    return (wide[:, low + 1] << WORD).bitwise_or_(wide[:, low]) >> shift
