"""Vectors as bytes, in the types and orders that vLLM's clients ask for by `embed_dtype` and `endianness`.

A frontend has no numpy: what is done to all numbers at once is done to one long integer, a lane of 32 bits for each.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

from ..output.turns import Turns

Type = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Order = Literal["native", "little", "big"]
BYTES = ("bytes", "bytes_only")  # forms of an answer that is no JSON
PIECE = 1 << 18  # bytes of float32 that are packed in one turn of the event loop: some milliseconds
LARGEST_HALF = 65504.0
SIZE, SIGN, INFINITY = 0x7FFFFFFF, 0x80000000, 0x7F800000  # of float32
LARGEST_BRAIN, BRAIN_NAN, EIGHTH_NAN = 0x7F7F, 0x7FC0, 0x7F
LOW = slice(0 if sys.byteorder == "little" else 1, None, 2)  # the low halves of words
# bits behind the point, bias, how many are finite, what infinity is
EIGHTS = {"fp8_e4m3": (3, 7, 0x7F, 0x7E), "fp8_e5m2": (2, 15, 0x7C, 0x7C)}


class Packed(NamedTuple):
    """How."""

    type: Type = "float32"
    order: Order = "native"

    async def pack(self, vectors: Iterable[bytes]) -> list[bytes]:
        """Of each the numbers, float32 in this machine's order; what a type has no room for is its largest number."""
        made, turns = [], Turns(PIECE)
        for floats in vectors:
            parts = []
            for start in range(0, len(floats), PIECE):
                parts.append(self._piece(floats[start : start + PIECE]))
                await turns.done(min(PIECE, len(floats) - start))
            made.append(b"".join(parts))
        return made

    def _piece(self, floats: bytes) -> bytes:
        match self.type:
            case "float32":
                return self._ordered(array("f", floats))
            case "float16":
                return self._ordered(_halves(array("f", floats)))
            case "bfloat16":
                return self._ordered(_brains(floats))
        return bytes(map(_eighths(self.type).__getitem__, _sticky(floats)))

    def _ordered(self, words: array[float] | array[int]) -> bytes:
        if self.order not in ("native", sys.byteorder):
            words.byteswap()
        return words.tobytes()


def _halves(words: array[float]) -> array[int]:
    form = f"={len(words)}e"
    try:
        return array("H", struct.pack(form, *words))
    except OverflowError:
        fitting = (one if math.isinf(one) else min(max(one, -LARGEST_HALF), LARGEST_HALF) for one in words)
        return array("H", struct.pack(form, *fitting))


def _brains(floats: bytes) -> array[int]:
    """Rounded to the nearest, of two the even one."""
    count, lanes = len(floats) // 4, int.from_bytes(floats, sys.byteorder)
    past = _each(SIGN - (LARGEST_BRAIN << 16 | 0x8000), count)  # reaches the sign from what would round to infinity
    if (lanes & _each(SIZE, count)) + past & _each(SIGN, count):
        return array("H", map(_brain, array("I", floats)))
    return _low_halves(lanes + _each(0x7FFF, count) + (lanes >> 16 & _each(1, count)) >> 16, count)


def _brain(bits: int) -> int:
    """One of them, whatever it is."""
    size = bits & SIZE
    if size > INFINITY:
        return BRAIN_NAN
    if size == INFINITY:
        return bits >> 16
    return min(size + 0x7FFF + (size >> 16 & 1) >> 16, LARGEST_BRAIN) | bits >> 16 & 0x8000


def _sticky(floats: bytes) -> array[int]:
    """The high halves, odd where the low one is not 0: to fewer bits they are rounded as the whole is."""
    count, lanes = len(floats) // 4, int.from_bytes(floats, sys.byteorder)
    low = _each(0xFFFF, count)
    return _low_halves((lanes >> 16) | ((lanes & low) + low >> 16 & _each(1, count)), count)


def _each(word: int, count: int) -> int:
    """This word in each of so many lanes."""
    return int.from_bytes(word.to_bytes(4, sys.byteorder) * count, sys.byteorder)


def _low_halves(lanes: int, count: int) -> array[int]:
    return array("H", lanes.to_bytes(4 * count, sys.byteorder))[LOW]


@cache
def _eighths(kind: str) -> bytes:
    """The byte of each high half."""
    sizes = array("f", array("I", range(0, SIGN, 1 << 16)).tobytes())
    codes = bytes(_eighth(size, kind) for size in sizes)
    return codes + bytes(code | 0x80 for code in codes)


@cache
def _middles(kind: str) -> list[float]:
    """What separates each number from the next larger one."""
    point, bias, count, _ = EIGHTS[kind]
    whole = 1 << point
    found = []
    for code in range(count):
        exponent, rest = divmod(code, whole)
        found.append((rest if not exponent else whole + rest) * 2.0 ** (max(exponent, 1) - bias - point))
    return [(one + other) / 2 for one, other in pairwise(found)]


def _eighth(size: float, kind: str) -> int:
    """The byte of the nearest one, of two the even one."""
    if math.isnan(size):
        return EIGHTH_NAN
    if math.isinf(size):
        return EIGHTS[kind][3]
    middles = _middles(kind)
    code = bisect_left(middles, size)
    if code % 2 and code < len(middles) and middles[code] == size:
        code += 1
    return code
