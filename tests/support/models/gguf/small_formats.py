"""What blocks of GGUF's types of 1 to 3 bits, of ternary ones and of NVFP4 mean, number by number, in Python's floats.

Vectors of grids are the decoder's own, whose digests are those of llama.cpp's tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from actorserve.actors.worker.models.gguf_grids import vectors

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
Formula = Callable[[bytes], list[float]]


def half(block: bytes, at: int = 0) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def number(block: bytes, at: int, size: int) -> int:
    return int.from_bytes(block[at : at + size], "little")


def sign(bits: int, at: int) -> int:
    return -1 if bits >> at & 1 else 1


def even(bits: int) -> int:
    """Seven bits, and an eighth so that an even number of them is set."""
    return bits | (bits.bit_count() & 1) << 7


def vector(name: str, at: int) -> list[float]:
    return [float(value) for value in vectors(name)[at]]


def iq2_xxs(block: bytes) -> list[float]:
    found = []
    for group in range(8):
        word = number(block, 2 + 8 * group + 4, 4)
        scale = half(block) * (0.5 + (word >> 28)) * 0.25
        for part in range(4):
            signs = even(word >> (7 * part) & 127)
            values = vector("IQ2_XXS", block[2 + 8 * group + part])
            found += [scale * value * sign(signs, at) for at, value in enumerate(values)]
    return found


def iq2_xs(block: bytes) -> list[float]:
    found = []
    for part in range(32):
        word, scales = number(block, 2 + 2 * part, 2), block[66 + part // 4]
        scale = half(block) * (0.5 + (scales >> 4 if part // 2 % 2 else scales & 15)) * 0.25
        signs = even(word >> 9)
        found += [scale * value * sign(signs, at) for at, value in enumerate(vector("IQ2_XS", word & 511))]
    return found


def iq2_s(block: bytes) -> list[float]:
    found = []
    for part in range(32):
        name = block[2 + part] | (block[66 + part // 4] >> (2 * (part % 4)) & 3) << 8
        scales = block[74 + part // 4]
        scale = half(block) * (0.5 + (scales >> 4 if part // 2 % 2 else scales & 15)) * 0.25
        found += [scale * value * sign(block[34 + part], at) for at, value in enumerate(vector("IQ2_S", name))]
    return found


def iq3_xxs(block: bytes) -> list[float]:
    found = []
    for part in range(64):
        word = number(block, 66 + 4 * (part // 8), 4)
        scale = half(block) * (0.5 + (word >> 28)) * 0.5
        signs = even(word >> (7 * (part // 2 % 4)) & 127)
        values = vector("IQ3_XXS", block[2 + part])
        found += [scale * value * sign(signs, 4 * (part % 2) + at) for at, value in enumerate(values)]
    return found


def iq3_s(block: bytes) -> list[float]:
    found = []
    for part in range(64):
        name = block[2 + part] | (block[66 + part // 8] >> (part % 8) & 1) << 8
        scales = block[106 + part // 16]
        scale = half(block) * (1 + 2 * (scales >> 4 if part // 8 % 2 else scales & 15))
        signs = block[74 + part // 2]
        values = vector("IQ3_S", name)
        found += [scale * value * sign(signs, 4 * (part % 2) + at) for at, value in enumerate(values)]
    return found


def iq1_s(block: bytes) -> list[float]:
    found = []
    for part in range(32):
        word = number(block, 34 + 2 * (part // 4), 2)
        name = block[2 + part] | (word >> (3 * (part % 4)) & 7) << 8
        scale, moved = half(block) * (2 * (word >> 12 & 7) + 1), -0.125 if word >> 15 else 0.125
        found += [scale * (value + moved) for value in vector("IQ1", name)]
    return found


def iq1_m(block: bytes) -> list[float]:
    words = [number(block, 48 + 2 * at, 2) for at in range(4)]
    d = half(struct.pack("<H", sum((word >> 12) << (4 * at) for at, word in enumerate(words))))
    found = []
    for part in range(32):
        high = block[32 + part // 2] >> (4 * (part % 2)) & 15
        scale = d * (2 * (words[part // 8] >> (3 * (part // 2 % 4)) & 7) + 1)
        moved = -0.125 if high & 8 else 0.125
        found += [scale * (value + moved) for value in vector("IQ1", block[part] | (high & 7) << 8)]
    return found


def tq1_0(block: bytes) -> list[float]:
    found = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        for power in range(count):
            found += [half(block, 52) * ((byte * 3**power % 256 * 3 >> 8) - 1) for byte in block[first:last]]
    return found


def tq2_0(block: bytes) -> list[float]:
    places = [(part, shift, at) for part in range(2) for shift in range(4) for at in range(32)]
    return [half(block, 64) * ((block[32 * part + at] >> (2 * shift) & 3) - 1) for part, shift, at in places]


def q1_0(block: bytes) -> list[float]:
    return [half(block) * (1 if block[2 + at // 8] >> (at % 8) & 1 else -1) for at in range(128)]


def nvfp4(block: bytes) -> list[float]:
    found = []
    for group in range(4):
        exponent, fraction = block[group] >> 3 & 15, block[group] & 7
        scale = fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
        scale = 0.0 if block[group] == 0x7F else scale
        own = block[4 + 8 * group : 12 + 8 * group]
        found += [scale * E2M1[byte & 15] for byte in own] + [scale * E2M1[byte >> 4] for byte in own]
    return found


SMALL: dict[str, tuple[int, int, int, Formula]] = {  # number in files, numbers and bytes of a block
    "IQ2_XXS": (16, 256, 66, iq2_xxs),
    "IQ2_XS": (17, 256, 74, iq2_xs),
    "IQ3_XXS": (18, 256, 98, iq3_xxs),
    "IQ1_S": (19, 256, 50, iq1_s),
    "IQ3_S": (21, 256, 110, iq3_s),
    "IQ2_S": (22, 256, 82, iq2_s),
    "IQ1_M": (29, 256, 56, iq1_m),
    "TQ1_0": (34, 256, 54, tq1_0),
    "TQ2_0": (35, 256, 66, tq2_0),
    "NVFP4": (40, 64, 36, nvfp4),
    "Q1_0": (41, 128, 18, q1_0),
}
HALVES = {"IQ1_M": (54,), "TQ1_0": (52,), "TQ2_0": (64,), "NVFP4": ()}  # where scales stand in float16, if not first
