"""Weights of a checkpoint in the bits in which it has them, as a GPU multiplies with them.

Whole numbers of up to 8 bits with a scale (and a zero point) for groups of columns, floats of 8 bits and of 4. What is
in none of these, or cannot be cut as a group of workers needs it, is decoded to floats (decoding.py). What is read goes
to the device first, which puts numbers in order in no time that counts: a CPU takes 20 ns for each. A member of a group
reads its part alone, and all of a linear where words would be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight

from ...model.architecture import Architecture
from ...model.formats.stored import (
    WHOLE,
    AwqWeight,
    Cuts,
    ExpertFloat4Weight,
    Float4Weight,
    GptqWeight,
    PackedWeight,
    ScaledWeight,
    WeightFormat,
)
from ...model.layers import LinearSpec
from ...model.weights.weight_files import check_weights
from ...options.config import ConfigError
from ..models.sharding import Place, Read, cutter
from .decoding import read_stored
from .floats import halves
from .integers import Affine, awq_parts, gptq_parts, packed_parts, scale_numbers
from .parts import Parts, can_divide, cut, is_sound, own_rows, short, together
from .stacking import unstacked

NOT_A_NUMBER = 127  # of the lower 7 bits of a float of 8
NO_POWER = 255  # of the bits of a scale that is a power of 2
SIGN = 128  # what numbers with a sign have more than they are


class CheckpointBits:
    """Reads linears of a checkpoint, of a member of a group its part."""

    def __init__(
        self,
        folder: Path,
        shape: Architecture,
        place: Place,
        expert_parallel: bool,
        read_parts: Callable[[Any], Read],
        device: torch.device | str = "cpu",
    ) -> None:
        """`shape` is the whole model's; `read_parts` opens tensors by their homes; `device`: where all is made."""
        homes = {name: stored.home(name) for name, stored in check_weights(folder, shape).items()}
        parts = shape.stacked(homes)
        self._read, self._shape = unstacked(read_parts(homes), parts, shape.stored_shapes()), shape
        self._there = homes.keys() | {name for name, part in parts.items() if part.name in homes}
        self._specs, self._place, self._device = shape.specs(), place, device
        self._cut = cutter(shape, place, expert_parallel)

    def of(self, linears: Sequence[LinearSpec], weight: Callable[[], Tensor]) -> list[StoredWeight]:
        """The linears, as few as can be; none where one is to be decoded."""
        return together(part for linear in linears for part in self._parts(linear))

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether the checkpoint has no floats of it."""
        return self._shape.format_of(linear.name) is not None

    def groups(self, linears: Sequence[LinearSpec]) -> Tensor | None:
        """Linears of one expert in MXFP4, one behind the other: bytes [rows, groups, 17], of which the last is a
        group's scale; None where one is in another form, or columns are cut within a group."""
        found = [self._groups(linear) for linear in linears]
        there = [part for part in found if part is not None]
        return torch.cat(there) if len(there) == len(found) else None

    def _groups(self, linear: LinearSpec) -> Tensor | None:
        form = self._shape.format_of(linear.name)
        if not isinstance(form, ExpertFloat4Weight):
            return None
        found = []
        for own in self._own(linear):
            cuts = form.cuts(*own)
            if not can_cut(cuts):
                return None
            given = self._given(linear, form, cuts)
            scales = given["scales"].view(torch.uint8)
            if (scales == NO_POWER).any():
                raise ConfigError(f"model: {linear.name}.scales has bytes of {NO_POWER}, which are no number")
            found.append(torch.cat([given["blocks"], scales[..., None]], 2))
        return torch.cat(found)

    def _own(self, linear: LinearSpec) -> list[Own]:
        """The parts of a linear that are this member's."""
        columns, size = self._cut(linear.columns)[0], self._size(linear)
        return [Own(rows, columns, size) for rows in own_rows(linear, self._cut)]

    def _size(self, linear: LinearSpec) -> tuple[int, int]:
        rows, columns = self._shape.tensor_shape(self._specs[f"{linear.name}.weight"])
        return rows, columns

    def _given(self, linear: LinearSpec, form: WeightFormat, cuts: Cuts) -> dict[str, Tensor]:
        size, used = self._size(linear), self._specs.keys()
        found = read_stored(self._read, self._there, form, f"{linear.name}.", size, used, cuts)
        return {suffix: tensor.to(self._device) for suffix, tensor in found.items()}

    def _parts(self, linear: LinearSpec) -> Iterator[Parts | None]:
        """One behind the other; None where one is to be decoded."""
        form = self._shape.format_of(linear.name)
        if form is None or not form.stays or self._shape.grouped_qkv or not can_divide(linear, self._place):
            yield None
            return
        make, owns = READERS[type(form)], self._own(linear)
        cuts = [form.cuts(*own) for own in owns]
        if self._place.size > 1 and all(map(can_cut, cuts)):
            for own, some in zip(owns, cuts, strict=True):
                parts = make(form, self._given(linear, form, some), own)
                yield parts if parts is not None and is_sound(parts) else None
            return
        rows, columns = size = self._size(linear)
        parts = make(form, self._given(linear, form, {}), Own(slice(0, rows), slice(0, columns), size))
        yield None if parts is None else cut(parts, linear, self._cut)


class Own(NamedTuple):
    """A part of a weight, and the size of all of it."""

    rows: slice
    columns: slice
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


def can_cut(cuts: Cuts) -> bool:
    """Whether no tensor is cut within what lies together."""
    return None not in (some for both in cuts.values() for some in both)


def _affine(read: Callable[[Any, dict[str, Tensor], int, int], Affine]) -> Reader:
    def parts(form: Any, stored: dict[str, Tensor], own: Own) -> Parts | None:
        numbers, scales, zeros, group, order = read(form, stored, *own.shape)
        group = own.size[1] if group == WHOLE else group
        if order is not None and not torch.equal(order.long(), torch.arange(len(order), device=order.device) // group):
            return None
        group = min(group, own.shape[1])
        kind = "bits4" if getattr(form, "bits", 4) <= 4 else "bits8"
        same = bool((zeros == zeros[0, 0]).all())
        each = None if same else zeros.to(torch.uint8)
        return Parts(kind, numbers, short(scales), group, each, int(zeros[0, 0]) if same else 0)

    return parts


def _scaled(form: ScaledWeight, stored: dict[str, Tensor], own: Own) -> Parts | None:
    """A scale for each block; here each row of it has that by itself."""
    rows, columns = own.size
    height, width = form.block[0] or rows, min(form.block[1] or columns, columns)
    scale = stored[form.scale] if form.scale in stored or form.other_name is None else stored[form.other_name]
    grid = scale_numbers(scale).div(form.divisor).view(-(-rows // height), -(-columns // width))
    blocks = slice(own.columns.start // width, -(-own.columns.stop // width))
    scales = short(grid.repeat_interleave(height, 0)[own.rows, blocks])
    width = min(width, own.shape[1])
    bits = stored[form.weight].view(torch.uint8)
    if form.type == "I8":
        return Parts("bits8", bits ^ SIGN, scales, width, None, SIGN)
    if (bits & NOT_A_NUMBER == NOT_A_NUMBER).any():
        return None
    return Parts("e4m3", bits, scales, width)


def _float4(form: Float4Weight, stored: dict[str, Tensor], own: Own) -> Parts | None:
    """A scale of all groups' scales is one of rows."""
    rows, columns = own.shape
    numbers = halves(stored[form.weight].view(torch.uint8), low_first=True)[:, :columns]
    scales, factors = short(scale_numbers(stored[form.scale])), None
    if form.whole is not None:
        whole = stored[form.whole].float().view(1)
        factors = (1 / whole if form.divides else whole).repeat(rows)
    return Parts("e2m1", numbers, scales, min(form.group, columns), factors=factors)


Reader = Callable[[Any, dict[str, Tensor], Own], Parts | None]
READERS: dict[type[WeightFormat], Reader] = {
    AwqWeight: _affine(awq_parts),
    GptqWeight: _affine(gptq_parts),
    PackedWeight: _affine(packed_parts),
    ScaledWeight: _scaled,
    Float4Weight: _float4,
}
