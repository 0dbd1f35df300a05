"""Weights of a checkpoint in the bits in which it has them, as a GPU multiplies with them.

Whole numbers of up to 8 bits with a scale (and a zero point) for groups of columns, floats of 8 bits and of 4. What is
in none of these, or cannot be cut as a group of workers needs it, is decoded to floats (decoding.py). Knows no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight, stored_weight

from ...model.architecture import Architecture
from ...model.formats.stored import (
    WHOLE,
    AwqWeight,
    Float4Weight,
    GptqWeight,
    PackedWeight,
    ScaledWeight,
    WeightFormat,
)
from ...model.layers import Axis, LinearSpec
from ...model.weights.weight_files import check_weights
from ..models.sharding import Cut, Place, Read, cutter
from .decoding import read_stored
from .floats import halves
from .integers import Affine, awq_parts, gptq_parts, packed_parts, scale_numbers

NOT_A_NUMBER = 127  # of the lower 7 bits of a float of 8
SIGN = 128  # what numbers with a sign have more than they are


class Parts(NamedTuple):
    """Of one linear of the checkpoint: what `stored_weight` takes, as it says."""

    form: str
    numbers: Tensor  # [rows, columns]
    scales: Tensor  # [rows, groups]
    group: int
    zeros: Tensor | None = None
    zero: int = 0
    factors: Tensor | None = None


class CheckpointBits:
    """Reads linears of a checkpoint, of a member of a group its part."""

    def __init__(
        self,
        folder: Path,
        shape: Architecture,
        place: Place,
        expert_parallel: bool,
        read_parts: Callable[[Any], Read],
    ) -> None:
        """`shape` is the whole model's; `read_parts` opens tensors by their homes."""
        homes = {name: (stored.file, stored.name or name) for name, stored in check_weights(folder, shape).items()}
        self._read, self._there, self._shape = read_parts(homes), homes.keys(), shape
        self._specs, self._place = shape.specs(), place
        self._cut: Cut = cutter(shape, place, expert_parallel)

    def of(self, linears: Sequence[LinearSpec]) -> StoredWeight | None:
        """The linears as one; None where that cannot be, and they are to be decoded."""
        found = [part for linear in linears if (part := self._part(linear)) is not None]
        if len(found) < len(linears) or len({(part.form, part.group) for part in found}) > 1:
            return None
        return stored_weight(*_together(found))

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether the checkpoint has no floats of it."""
        return self._shape.format_of(linear.name) is not None

    def _part(self, linear: LinearSpec) -> Parts | None:
        form = self._shape.format_of(linear.name)
        if form is None or not form.stays or self._shape.grouped_qkv:
            return None
        if Axis.VOCABULARY in linear.rows and self._place.size > 1:
            return None
        rows, columns = self._shape.tensor_shape(self._specs[f"{linear.name}.weight"])
        given = read_stored(self._read, self._there, form, f"{linear.name}.", (rows, columns), self._specs.keys())
        parts = READERS[type(form)](form, given, rows, columns)
        if parts is None or not _is_finite(parts):
            return None
        return _cut(parts, linear, self._cut)


def _affine(read: Callable[[Any, dict[str, Tensor], int, int], Affine]) -> Reader:
    def parts(form: Any, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
        numbers, scales, zeros, group, order = read(form, stored, rows, columns)
        group = columns if group == WHOLE else min(group, columns)
        if order is not None and not torch.equal(order.long(), torch.arange(columns) // group):
            return None
        kind = "bits4" if getattr(form, "bits", 4) <= 4 else "bits8"
        same = bool((zeros == zeros[0, 0]).all())
        own = None if same else zeros.to(torch.uint8)
        return Parts(kind, numbers.to(torch.uint8), _short(scales), group, own, int(zeros[0, 0]) if same else 0)

    return parts


def _scaled(form: ScaledWeight, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
    """A scale for each block; here each row of it has that by itself."""
    height, width = form.block[0] or rows, min(form.block[1] or columns, columns)
    scale = stored[form.scale] if form.scale in stored or form.other_name is None else stored[form.other_name]
    grid = scale_numbers(scale).div(form.divisor).view(-(-rows // height), -(-columns // width))
    scales = _short(grid.repeat_interleave(height, 0)[:rows])
    bits = stored[form.weight].view(torch.uint8)
    if form.type == "I8":
        return Parts("bits8", bits ^ SIGN, scales, width, None, SIGN)
    if (bits & NOT_A_NUMBER == NOT_A_NUMBER).any():
        return None
    return Parts("e4m3", bits, scales, width)


def _float4(form: Float4Weight, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
    """A scale of all groups' scales is one of rows."""
    numbers = halves(stored[form.weight], low_first=True)[:, :columns].to(torch.uint8)
    scales, factors = _short(scale_numbers(stored["weight_scale"])), None
    if form.whole is not None:
        whole = stored[form.whole].float().view(1)
        factors = (1 / whole if form.divides else whole).repeat(rows)
    return Parts("e2m1", numbers, scales, min(form.group, columns), factors=factors)


Reader = Callable[[Any, dict[str, Tensor], int, int], Parts | None]
READERS: dict[type[WeightFormat], Reader] = {
    AwqWeight: _affine(awq_parts),
    GptqWeight: _affine(gptq_parts),
    PackedWeight: _affine(packed_parts),
    ScaledWeight: _scaled,
    Float4Weight: _float4,
}


def _short(scales: Tensor) -> Tensor:
    """In 16 bits, where these are the same numbers."""
    for dtype in (torch.bfloat16, torch.float16):
        if scales.dtype == dtype or torch.equal(scales.to(dtype).float(), scales.float()):
            return scales.to(dtype)
    return scales.float()


def _is_finite(parts: Parts) -> bool:
    """Of others the decoder says what is wrong."""
    return all(bool(part.isfinite().all()) for part in (parts.scales, parts.factors) if part is not None)


def _cut(parts: Parts, linear: LinearSpec, cut: Cut) -> Parts | None:
    """The rows and columns of a member of a group; None where columns are cut within what shares a scale."""
    own, whole = cut(linear.columns)
    width, groups = own.stop - own.start, slice(None)
    if parts.scales.shape[1] > 1:
        if own.start % parts.group or (own.stop % parts.group and own.stop < whole):
            return None
        groups = slice(own.start // parts.group, -(-own.stop // parts.group))
    slices, first = [], 0
    for axis in linear.rows:
        rows, count = cut(axis)
        slices.append(slice(first + rows.start, first + rows.stop))
        first += count

    def of(tensor: Tensor | None, columns: slice | None) -> Tensor | None:
        if tensor is None:
            return None
        return torch.cat([tensor[rows] if columns is None else tensor[rows, columns] for rows in slices])

    numbers, scales = of(parts.numbers, own), of(parts.scales, groups)
    assert numbers is not None and scales is not None
    zeros, factors = of(parts.zeros, groups), of(parts.factors, None)
    return Parts(parts.form, numbers, scales, min(parts.group, width), zeros, parts.zero, factors)


def _together(parts: Sequence[Parts]) -> Parts:
    """One behind the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    scales = torch.cat([part.scales for part in parts])
    if len({part.scales.dtype for part in parts}) > 1:
        scales = torch.cat([part.scales.float() for part in parts])
    zeros = factors = None
    if any(part.zeros is not None for part in parts) or len({part.zero for part in parts}) > 1:
        zeros = torch.cat([_zeros_of(part) for part in parts])
    if any(part.factors is not None for part in parts):
        ones = (torch.ones(len(part.numbers)) if part.factors is None else part.factors for part in parts)
        factors = torch.cat([*ones])
    numbers = torch.cat([part.numbers for part in parts])
    return Parts(first.form, numbers, scales, first.group, zeros, first.zero, factors)


def _zeros_of(part: Parts) -> Tensor:
    return torch.full(part.scales.shape, part.zero, dtype=torch.uint8) if part.zeros is None else part.zeros
