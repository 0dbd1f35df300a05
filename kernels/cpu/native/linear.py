"""Products with a weight by linear.c: numbers of float32, bfloat16, float16, or 8 bits."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .library import Library

GROUP, CHUNK = 32, 128  # numbers of 4 bits that share a scale, and that are multiplied together
PACKED = 16  # rows that are made ready together
MOST_INPUTS = 1 << 16  # of 8 bits, whose sums fit 32


class Weights(IntEnum):
    """linear.h's enum weights."""

    FLOAT_32 = 0
    BFLOAT_16 = 1
    FLOAT_16 = 2
    INT_8 = 3
    FOUR_BITS = 4


class Scales(IntEnum):
    """linear.h's enum scales."""

    HALVES = 0
    BFLOAT_PAIRS = 1
    FLOAT_PAIRS = 2
    SUPER_BLOCKS = 3


FLOATS = {torch.float32: Weights.FLOAT_32, torch.bfloat16: Weights.BFLOAT_16, torch.float16: Weights.FLOAT_16}


class FourBits(NamedTuple):
    """Numbers from 0 to 15 [outputs, inputs] as uint8, and tensors [outputs, …] of what scales them: int4.c.

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
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "offset", "bias")),
        *((name, ctypes.c_int64) for name in ("steps", "scaled", "group")),
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
        offset: Tensor | None = None,
        steps: int = 0,
        scaled: Scales = Scales.HALVES,
        group: int = 0,
    ) -> None:
        """`weight` has rows that lie one after the other, however many bytes one has."""
        assert weight.is_contiguous()
        self.library = library
        self.outputs, self.inputs = len(weight), inputs
        given = (weight, scale, offset, None if bias is None else bias.float())
        self.kept = [None if one is None else one.contiguous() for one in given]
        places = (None if one is None else one.data_ptr() for one in self.kept)
        stride = weight.stride(0) * weight.itemsize
        self.data = LinearData(kind, self.outputs, inputs, stride, *places, steps, scaled, group)
        self._where = ctypes.byref(self.data)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        of_data = ctypes.POINTER(LinearData)
        self._run = library.function("linear_run", pointer, of_data, pointer, number, pointer, pointer, number)
        self._row_bytes = library.size("linear_row_bytes", of_data)(self._where)

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

    def _multiply(self, x: Tensor, out: Tensor, add: int) -> None:
        rows = len(x)
        x = (x if x.dtype == torch.float32 else x.float()).contiguous()
        ready = self.library.scratch((rows + PACKED) * self._row_bytes)
        self._run(self.library.pool, self._where, x.data_ptr(), rows, ready, out.data_ptr(), add)


def float_linear(library: Library, weight: Tensor, bias: Tensor | None) -> NativeLinear:
    """Of a weight of floats as it is."""
    return NativeLinear(library, FLOATS[weight.dtype], weight.contiguous(), weight.shape[1], bias)


def int8_linear(
    library: Library, weight: Tensor, scales: Tensor, inputs: int, steps: int, bias: Tensor | None
) -> NativeLinear:
    """`weight` int8 [outputs, stride], zeros behind `inputs`; `scales` [outputs]; `steps` that x takes."""
    assert weight.shape[1] == stride_of(library, inputs) and inputs <= MOST_INPUTS
    offset = (weight.sum(1, dtype=torch.int32) * library.number("int8_offset")).int()
    return NativeLinear(library, Weights.INT_8, weight, inputs, bias, scales.float(), offset, steps)


def int4_linear(library: Library, parts: FourBits, bias: Tensor | None) -> NativeLinear:
    """Of numbers of 4 bits with their scales."""
    made = [_packed(parts.numbers), *(_as_bytes(scales) for scales in parts.scales)]
    weight = library.weights.zeros((len(parts.numbers), sum(part.shape[1] for part in made)), torch.uint8)
    torch.cat(made, 1, out=weight)
    inputs = parts.numbers.shape[1]
    return NativeLinear(
        library, Weights.FOUR_BITS, weight, inputs, bias, scaled=parts.scaled, group=parts.group or GROUP
    )


def _packed(numbers: Tensor) -> Tensor:
    """Of each 128 numbers 64 bytes; the first 64 in the lower halves."""
    whole = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % CHUNK))
    low, high = whole.unflatten(1, (-1, 2, CHUNK // 2)).unbind(2)
    packed: Tensor = low | high << 4
    return packed.flatten(1)


def _as_bytes(scales: Tensor) -> Tensor:
    return scales.flatten(1).contiguous().view(torch.uint8)


def stride_of(library: Library, inputs: int) -> int:
    """Bytes that a row of weights of 8 bits takes."""
    unit = library.number("int8_vector")
    return -(-inputs // unit) * unit
