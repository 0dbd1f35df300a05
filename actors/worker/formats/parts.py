"""Linears of a checkpoint in the bits in which it has them: of a group of workers a member's part, and several as one.

Knows no format and no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight, stored_weight

from ...model.layers import Axis, LinearSpec
from ..models.sharding import Cut, Place
from ..models.tensors import is_finite


class Parts(NamedTuple):
    """Of one linear, or of several: what `stored_weight` takes, as it says."""

    form: str
    numbers: Tensor  # [rows, columns]
    scales: Tensor  # [rows, groups]
    group: int
    zeros: Tensor | None = None
    zero: int = 0
    factors: Tensor | None = None
    minima: Tensor | None = None
    above: Tensor | None = None
    together: int = 0


def can_divide(linear: LinearSpec, place: Place) -> bool:
    """What makes logits is filled up where several workers have it."""
    return Axis.VOCABULARY not in linear.rows or place.size == 1


def cut(parts: Parts, linear: LinearSpec, cut_axis: Cut) -> Parts | None:
    """The rows and columns of a member of a group; None where columns are cut within what shares a scale, or a scale is
    no number, of which the decoder says what is wrong."""
    if not is_sound(parts):
        return None
    columns, whole = cut_axis(linear.columns)
    width = columns.stop - columns.start
    groups = above = slice(None)
    if parts.scales.shape[1] > 1:
        step = parts.group * max(1, parts.together)
        if columns.start % step or (columns.stop % step and columns.stop < whole):
            return None
        groups = slice(columns.start // parts.group, -(-columns.stop // parts.group))
        above = slice(columns.start // step, -(-columns.stop // step))
    slices = own_rows(linear, cut_axis)

    def own(tensor: Tensor, some: slice | None) -> Tensor:
        return torch.cat([tensor[rows] if some is None else tensor[rows, some] for rows in slices])

    def own_if(tensor: Tensor | None, some: slice | None) -> Tensor | None:
        return None if tensor is None else own(tensor, some)

    return parts._replace(
        numbers=own(parts.numbers, columns),
        scales=own(parts.scales, groups),
        group=min(parts.group, width),
        zeros=own_if(parts.zeros, groups),
        factors=own_if(parts.factors, None),
        minima=own_if(parts.minima, groups),
        above=own_if(parts.above, above),
    )


def own_rows(linear: LinearSpec, cut_axis: Cut) -> list[slice]:
    """The rows of a member of a group, of each axis that a linear has."""
    slices, first = [], 0
    for axis in linear.rows:
        rows, count = cut_axis(axis)
        slices.append(slice(first + rows.start, first + rows.stop))
        first += count
    return slices


def together(parts: Iterable[Parts | None]) -> list[StoredWeight]:
    """Neighbours that are alike as one. None at all where one is not there."""
    runs: list[list[Parts]] = []
    for part in parts:
        if part is None:
            return []
        if runs and _kind(runs[-1][0]) == _kind(part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return [stored_weight(*_joined(run)) for run in runs]


def short(scales: Tensor) -> Tensor:
    """In 16 bits, where these are the same numbers."""
    for dtype in (torch.bfloat16, torch.float16):
        if scales.dtype == dtype or torch.equal(scales.to(dtype).float(), scales.float()):
            return scales.to(dtype)
    return scales.float()


def _kind(part: Parts) -> tuple[str, int, bool, int]:
    return part.form, part.group, part.minima is None, part.together


def is_sound(parts: Parts) -> bool:
    """Whether all scales are numbers."""
    floats = (parts.scales, parts.factors, parts.minima, parts.above)
    return all(is_finite(part) for part in floats if part is not None)


def _joined(parts: Sequence[Parts]) -> Parts:
    """One behind the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    zeros = factors = None
    if any(part.zeros is not None for part in parts) or len({part.zero for part in parts}) > 1:
        zeros = torch.cat([_zeros_of(part) for part in parts])
    if any(part.factors is not None for part in parts):
        factors = torch.cat([_factors_of(part) for part in parts])
    minima = [part.minima for part in parts if part.minima is not None]
    above = [part.above for part in parts if part.above is not None]
    return first._replace(
        numbers=torch.cat([part.numbers for part in parts]),
        scales=_rows([part.scales for part in parts]),
        zeros=zeros,
        factors=factors,
        minima=_rows(minima) if minima else None,
        above=torch.cat(above) if above else None,
    )


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other, in their type, or in float32."""
    same = len({part.dtype for part in parts}) == 1
    return torch.cat([part if same else part.float() for part in parts])


def _zeros_of(part: Parts) -> Tensor:
    if part.zeros is not None:
        return part.zeros
    return part.scales.new_full(part.scales.shape, part.zero, dtype=torch.uint8)


def _factors_of(part: Parts) -> Tensor:
    if part.factors is not None:
        return part.factors
    return part.scales.new_ones(len(part.numbers), dtype=torch.float32)
