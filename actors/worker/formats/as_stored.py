"""Weights of a checkpoint in the bits in which it has them, as a GPU multiplies with them.

Whole numbers of up to 8 bits with a scale (and a zero point) for groups of columns, floats of 8 bits and of 4. What is
in none of these, or cannot be cut as a group of workers needs it, is decoded to floats (decoding.py). What is read goes
to the device first, which puts numbers in order in no time that counts: a CPU takes 20 ns for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight

from ...model.architecture import Architecture
from ...model.formats.stored import (
    EXPERT_GROUP,
    WHOLE,
    AwqWeight,
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
from .parts import Parts, can_divide, cut, own_rows, short, together
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
        return together(self._part(linear) for linear in linears)

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
        form, (columns, _) = self._shape.format_of(linear.name), self._cut(linear.columns)
        if not isinstance(form, ExpertFloat4Weight) or columns.start % EXPERT_GROUP or columns.stop % EXPERT_GROUP:
            return None
        given = self._given(linear, form)
        scales = given["scales"].view(torch.uint8)
        if (scales == NO_POWER).any():
            raise ConfigError(f"model: {linear.name}.scales has bytes of {NO_POWER}, which are no number")
        some = slice(columns.start // EXPERT_GROUP, columns.stop // EXPERT_GROUP)
        whole = torch.cat([given["blocks"], scales[..., None]], 2)
        return torch.cat([whole[rows, some] for rows in own_rows(linear, self._cut)])

    def _given(self, linear: LinearSpec, form: WeightFormat) -> dict[str, Tensor]:
        rows, columns = self._shape.tensor_shape(self._specs[f"{linear.name}.weight"])
        size, used = (rows, columns), self._specs.keys()
        found = read_stored(self._read, self._there, form, f"{linear.name}.", size, used)
        return {suffix: tensor.to(self._device) for suffix, tensor in found.items()}

    def _part(self, linear: LinearSpec) -> Parts | None:
        form = self._shape.format_of(linear.name)
        if form is None or not form.stays or self._shape.grouped_qkv:
            return None
        if not can_divide(linear, self._place):
            return None
        rows, columns = self._shape.tensor_shape(self._specs[f"{linear.name}.weight"])
        given = self._given(linear, form)
        parts = READERS[type(form)](form, given, rows, columns)
        return None if parts is None else cut(parts, linear, self._cut)


def _affine(read: Callable[[Any, dict[str, Tensor], int, int], Affine]) -> Reader:
    def parts(form: Any, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
        numbers, scales, zeros, group, order = read(form, stored, rows, columns)
        group = columns if group == WHOLE else min(group, columns)
        if order is not None and not torch.equal(order.long(), torch.arange(columns, device=order.device) // group):
            return None
        kind = "bits4" if getattr(form, "bits", 4) <= 4 else "bits8"
        same = bool((zeros == zeros[0, 0]).all())
        own = None if same else zeros.to(torch.uint8)
        return Parts(kind, numbers, short(scales), group, own, int(zeros[0, 0]) if same else 0)

    return parts


def _scaled(form: ScaledWeight, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
    """A scale for each block; here each row of it has that by itself."""
    height, width = form.block[0] or rows, min(form.block[1] or columns, columns)
    scale = stored[form.scale] if form.scale in stored or form.other_name is None else stored[form.other_name]
    grid = scale_numbers(scale).div(form.divisor).view(-(-rows // height), -(-columns // width))
    scales = short(grid.repeat_interleave(height, 0)[:rows])
    bits = stored[form.weight].view(torch.uint8)
    if form.type == "I8":
        return Parts("bits8", bits ^ SIGN, scales, width, None, SIGN)
    if (bits & NOT_A_NUMBER == NOT_A_NUMBER).any():
        return None
    return Parts("e4m3", bits, scales, width)


def _float4(form: Float4Weight, stored: dict[str, Tensor], rows: int, columns: int) -> Parts | None:
    """A scale of all groups' scales is one of rows."""
    numbers = halves(stored[form.weight].view(torch.uint8), low_first=True)[:, :columns]
    scales, factors = short(scale_numbers(stored[form.scale])), None
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
