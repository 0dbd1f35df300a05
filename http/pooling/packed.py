"""Vectors as bytes, in the types and orders that vLLM's clients ask for by `embed_dtype` and `endianness`."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from functools import cache
from itertools import pairwise
from math import copysign
from typing import Literal, NamedTuple

Type = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Order = Literal["native", "little", "big"]
BYTES = ("bytes", "bytes_only")  # forms of an answer that is no JSON
LARGEST_HALF = 65504.0
EIGHTS = {"fp8_e4m3": (3, 7, 0x7F), "fp8_e5m2": (2, 15, 0x7C)}  # bits behind the point, bias, how many are finite


class Packed(NamedTuple):
    """How."""

    type: Type = "float32"
    order: Order = "native"

    def pack(self, floats: bytes) -> bytes:
        """Numbers of float32, in this machine's order; what a type has no room for is its largest number."""
        words = array("f", floats)
        match self.type:
            case "float32":
                return self._ordered(words)
            case "float16":
                halves = (min(max(one, -LARGEST_HALF), LARGEST_HALF) for one in words)
                return self._ordered(array("H", struct.pack(f"={len(words)}e", *halves)))
            case "bfloat16":  # rounded to the nearest, of two the even one
                bits = array("I", floats)
                return self._ordered(array("H", ((one + 0x7FFF + (one >> 16 & 1)) >> 16 for one in bits)))
        return bytes(_eighth(one, self.type) for one in words)

    def _ordered(self, words: array[float] | array[int]) -> bytes:
        if self.order not in ("native", sys.byteorder):
            words.byteswap()
        return words.tobytes()


@cache
def _middles(kind: str) -> list[float]:
    """What separates each number from the next larger one."""
    point, bias, count = EIGHTS[kind]
    whole = 1 << point
    found = []
    for code in range(count):
        exponent, rest = divmod(code, whole)
        found.append((rest if not exponent else whole + rest) * 2.0 ** (max(exponent, 1) - bias - point))
    return [(one + other) / 2 for one, other in pairwise(found)]


def _eighth(number: float, kind: str) -> int:
    """The byte of the nearest one, of two the even one."""
    middles, size = _middles(kind), abs(number)
    code = bisect_left(middles, size)
    if code % 2 and code < len(middles) and middles[code] == size:
        code += 1
    return code | (0x80 if copysign(1.0, number) < 0 else 0)
