"""Products with a weight by linear.c: numbers of float32, bfloat16, float16, 8 bits, or in groups that share scales."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .library import LINE, Library
from .weight_memory import WeightMemory

GROUP, CHUNK = 32, 128  # numbers that share a scale, also of x; and what rows are filled up to
SUPER = 256  # numbers whose scales share another one
SIDE = 16  # outputs that stand side by side
TASK_OUTPUTS = 32  # that a task is a multiple of
PACKED = 16  # rows that are made ready together
AT_ONCE = 1 << 19  # numbers that are put side by side in one step
MOST_INPUTS = 1 << 16  # of 8 bits, whose sums fit 32


class Weights(IntEnum):
    """linear.h's enum weights."""

    FLOAT_32 = 0
    BFLOAT_16 = 1
    FLOAT_16 = 2
    INT_8 = 3
    GROUPED = 4
    BOTH_BFLOAT_16 = 5


class Scales(IntEnum):
    """linear.h's enum scales."""

    HALVES = 0
    BFLOAT_PAIRS = 1
    FLOAT_PAIRS = 2
    SUPER_BLOCKS = 3
    EIGHT_BITS = 4
    SIX_BITS = 5


SUPERS = {Scales.SUPER_BLOCKS: (1, 8, 8), Scales.SIX_BITS: (1, 16)}  # what two chunks have, which lie together
FLOATS = {torch.float32: Weights.FLOAT_32, torch.bfloat16: Weights.BFLOAT_16, torch.float16: Weights.FLOAT_16}


class Grouped(NamedTuple):
    """Numbers [outputs, inputs] from 0 to 15 as uint8, of SIX_BITS to 63, of EIGHT_BITS as int8, and what scales them:
    tensors [outputs, groups or what else shares one, …] in the order in which groups.c has them.

    Groups that fill up the last chunk of 128 numbers have scales, too: of 0.
    """

    numbers: Tensor
    scales: tuple[Tensor, ...]
    scaled: Scales
    group: int = 0


class LinearData(ctypes.Structure):
    """linear.h's linear."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "outputs", "inputs", "stride")),
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_int64) for name in ("scaled", "group")),
        ("rest", ctypes.c_void_p),
    )


class NativeLinear:
    """y = x Wᵀ + b, of x in float32 or the type that is given."""

    def __init__(
        self,
        library: Library,
        kind: Weights,
        weight: Tensor,
        inputs: int,
        bias: Tensor | None,
        scale: Tensor | None = None,
        scaled: Scales = Scales.HALVES,
        group: int = 0,
        outputs: int | None = None,
        rest: NativeLinear | None = None,
    ) -> None:
        """`weight` has rows that lie one after the other, however many bytes one has; more of them than `outputs` where
        these are filled up. `rest` makes the outputs behind these, of weights of another kind."""
        assert weight.is_contiguous()
        self.library = library
        own = len(weight) if outputs is None else outputs
        self.outputs: int = own if rest is None else own + rest.outputs
        self.inputs, self.rest = inputs, rest
        given = (weight, scale, None if bias is None else bias.float())
        self.kept = [None if one is None else one.contiguous() for one in given]
        self.weight, self.scale, bias = self.kept
        self.bias: Tensor | None = bias
        if bias is not None and rest is not None and rest.bias is not None:
            self.bias = torch.cat([bias, rest.bias])
        places = (None if one is None else one.data_ptr() for one in self.kept)
        stride = weight.stride(0) * weight.itemsize
        behind = None if rest is None else ctypes.addressof(rest.data)
        self.data: LinearData = LinearData(kind, own, inputs, stride, *places, scaled, group, behind)
        self._where = ctypes.byref(self.data)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        of_data = ctypes.POINTER(LinearData)
        self._run = library.function("linear_run", pointer, of_data, pointer, number, pointer, pointer, number)
        self._row_bytes = library.size("linear_row_bytes", of_data)(self._where)

    @property
    def parts(self) -> list[NativeLinear]:
        """This one and its rest, each with outputs of its own."""
        return [self, *(self.rest.parts if self.rest is not None else ())]

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), self.outputs)
        self._multiply(x, out, 0)
        return out if x.dtype == torch.float32 else out.to(x.dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        if residual.dtype == torch.float32 and residual.is_contiguous():
            self._multiply(x, residual, 1)
        else:
            residual.add_(self(x))

    def apart(self, x: Tensor) -> Tensor:
        """y of x in float32 by whoever asks, be it a thread beside the one that computes steps."""
        out, x = torch.empty(len(x), self.outputs), x.contiguous()
        with self.library.apart((len(x) + PACKED) * self._row_bytes) as (pool, ready):
            self._run(pool, self._where, x.data_ptr(), len(x), ready, out.data_ptr(), 0)
        return out

    def _multiply(self, x: Tensor, out: Tensor, add: int) -> None:
        rows = len(x)
        x = (x if x.dtype == torch.float32 else x.float()).contiguous()
        ready = self.library.scratch((rows + PACKED) * self._row_bytes)
        self._run(self.library.pool, self._where, x.data_ptr(), rows, ready, out.data_ptr(), add)


def float_linear(library: Library, weight: Tensor, bias: Tensor | None) -> NativeLinear:
    """Of a weight of floats as it is."""
    return NativeLinear(library, FLOATS[weight.dtype], weight.contiguous(), weight.shape[1], bias)


def int8_linear(
    library: Library, weight: Tensor, scales: Tensor, bias: Tensor | None, memory: WeightMemory | None = None
) -> NativeLinear:
    """`weight` int8 [outputs, inputs], `scales` [outputs]; `memory` for it, if not that of all weights."""
    outputs, inputs = weight.shape
    assert inputs <= MOST_INPUTS
    room = _lines_side_by_side(memory or library.weights, weight)
    return NativeLinear(library, Weights.INT_8, room, inputs, bias, scales.float(), outputs=outputs)


def bfloat16_linear(library: Library, weight: Tensor, bias: Tensor | None) -> NativeLinear:
    """`weight` bfloat16 [outputs, inputs], of x that is rounded to bfloat16, too."""
    outputs, inputs = weight.shape
    room = _lines_side_by_side(library.weights, weight)
    return NativeLinear(library, Weights.BOTH_BFLOAT_16, room, inputs, bias, outputs=outputs)


def _lines_side_by_side(memory: WeightMemory, weight: Tensor) -> Tensor:
    """Rows of whole cache lines, of which four bytes of SIDE rows each stand side by side."""
    fours = _filled(weight, LINE // weight.itemsize).view(torch.int32)
    room = memory.zeros((len(fours), fours.shape[1] * 4 // weight.itemsize), weight.dtype)
    sides = room.view(torch.int32).view(-1, fours.shape[1], SIDE)
    sides.copy_(fours.view(-1, SIDE, fours.shape[1]).transpose(1, 2))
    return room


def side_by_side_weight(product: NativeLinear) -> Tensor:
    """The weight [outputs, inputs] that such a product multiplies, in float32."""
    weight, scale = product.weight, product.scale
    assert product.data.kind in (Weights.INT_8, Weights.BOTH_BFLOAT_16) and weight is not None
    fours = weight.view(torch.int32).view(len(weight) // SIDE, -1, SIDE).transpose(1, 2)
    numbers = fours.contiguous().view(len(weight), -1).view(weight.dtype)
    own = numbers[: product.outputs, : product.inputs].float()
    return own if scale is None else own * scale[:, None]


def grouped_linears(library: Library, runs: Sequence[Grouped], bias: Tensor | None) -> NativeLinear:
    """Of outputs one behind the other whose numbers are scaled in several ways; `can_follow` says which may."""
    made, end = None, sum(len(run.numbers) for run in runs)
    for run in reversed(runs):
        first = end - len(run.numbers)
        made = grouped_linear(library, run, None if bias is None else bias[first:end], made)
        end = first
    assert made is not None
    return made


def can_follow(first: Grouped, then: Grouped) -> bool:
    """May one product have outputs of both?"""
    return len(first.numbers) % TASK_OUTPUTS == 0 and first.numbers.shape[1] == then.numbers.shape[1]


def grouped_linear(
    library: Library, parts: Grouped, bias: Tensor | None, rest: NativeLinear | None = None
) -> NativeLinear:
    """Of numbers in groups, with their scales."""
    outputs, inputs = parts.numbers.shape
    if parts.scaled is Scales.FLOAT_PAIRS:
        parts = _of_chunks(parts)
    weight, first = None, 0
    for some in _in_turn(parts):
        made = _units_side_by_side(some)
        if weight is None:
            size = sum(part[0].numel() for part in made)
            weight = library.weights.zeros((-(-outputs // SIDE) * SIDE, size // SIDE), torch.uint8)
        blocks = weight.view(len(weight) // SIDE, made[0].shape[1], -1)
        _copy(made, blocks[first : first + len(made[0])])
        first += len(made[0])
    assert weight is not None
    return NativeLinear(
        library,
        Weights.GROUPED,
        weight,
        inputs,
        bias,
        scaled=parts.scaled,
        group=parts.group or GROUP,
        outputs=outputs,
        rest=rest,
    )


def _of_chunks(parts: Grouped) -> Grouped:
    """The same numbers with scales of groups that a chunk is a multiple of."""
    group = math.gcd(parts.group, CHUNK)
    count = -(-parts.numbers.shape[1] // CHUNK) * CHUNK // group
    scales = tuple(one.repeat_interleave(parts.group // group, 1)[:, :count] for one in parts.scales)
    return parts._replace(scales=scales, group=group)


def _in_turn(parts: Grouped) -> Iterator[Grouped]:
    """So many outputs at a time that what is made of them stays in the processor's cache."""
    step = max(1, AT_ONCE // max(1, SIDE * parts.numbers.shape[1])) * SIDE
    for first in range(0, len(parts.numbers), step):
        scales = tuple(one[first : first + step] for one in parts.scales)
        yield parts._replace(numbers=parts.numbers[first : first + step], scales=scales)


def _units_side_by_side(parts: Grouped) -> list[Tensor]:
    """Scales and numbers [blocks of SIDE outputs, units, bytes], as a unit has them one behind the other."""
    units = -(-parts.numbers.shape[1] // (SUPER if parts.scaled in SUPERS else CHUNK))
    shares = zip(parts.scales, SUPERS.get(parts.scaled, (1,)), strict=True)
    return [*(_scales_side_by_side(scales, each, units) for scales, each in shares), _side_by_side(parts, units)]


def _copy(parts: list[Tensor], out: Tensor) -> None:
    """One behind the other in each unit; all are of whole eights of bytes."""
    at, eights = 0, out.view(torch.int64)
    for part in (part.view(torch.int64) for part in parts):
        eights[..., at : at + part.shape[2]] = part
        at += part.shape[2]


def _side_by_side(parts: Grouped, units: int) -> Tensor:
    """The numbers [blocks of SIDE outputs, units, bytes] as groups.c has them."""
    numbers = _filled(parts.numbers.view(torch.uint8), SUPER if parts.scaled in SUPERS else CHUNK)
    fours = numbers.view(torch.int32).view(-1, SIDE, numbers.shape[1] // GROUP, GROUP // 4)
    if parts.scaled is Scales.SIX_BITS:
        fours = _six_bits(fours)
    elif parts.scaled is not Scales.EIGHT_BITS:
        low, high = fours.chunk(2, 3)
        fours = low | high << 4
    return fours.permute(0, 2, 3, 1).contiguous().view(len(fours), units, -1).view(torch.uint8)


def _six_bits(fours: Tensor) -> Tensor:
    """Of eight times four bytes in a group the lower halves, and then what is above these."""
    low, high = (fours & 0x0F0F0F0F).chunk(2, 3)
    first, second = (fours >> 4 & 0x03030303).chunk(2, 3)
    pairs = [
        part[..., place::2] << shift
        for part, shifts in ((first, (0, 2)), (second, (4, 6)))
        for place, shift in enumerate(shifts)
    ]
    return torch.cat([low | high << 4, pairs[0] | pairs[1] | pairs[2] | pairs[3]], 3)


def _scales_side_by_side(scales: Tensor, each: int, units: int) -> Tensor:
    """[blocks of SIDE outputs, units, bytes]: of each group, or what else shares them, those of SIDE outputs; of pairs
    the first ones, then the second ones."""
    whole = _filled(scales, each)
    sides = whole.view(-1, SIDE, *whole.shape[1:])
    sides = sides.transpose(1, 2) if sides.dim() == 3 else sides.permute(0, 2, 3, 1)
    return sides.contiguous().view(len(sides), units, -1).view(torch.uint8)


def _filled(rows: Tensor, columns: int) -> Tensor:
    """With zeros behind, so that there are whole blocks of rows, and multiples of so many columns."""
    more = -len(rows) % SIDE
    behind = -rows.shape[1] % columns
    pad = [0, 0] * (rows.dim() - 2) + [0, behind, 0, more]
    return torch.nn.functional.pad(rows, pad) if more or behind else rows.contiguous()
