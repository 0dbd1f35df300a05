"""What the blocks of GGUF's tensor types mean, number by number, and a few ways to make them.

Nothing here is shared with what is tested: formulas are those of llama.cpp's reference loops, in Python's floats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .small_formats import HALVES, SMALL

Array = np.ndarray[Any, Any]
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
PLAIN = {"F32": (0, "<f4"), "F16": (1, "<f2")}


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def simple(scale: int, least: int | None, high: int | None, quants: int, below: int) -> Callable[[bytes], list[float]]:
    """Blocks of 32 with a scale; where a least number, fifth bits and 4-bit numbers are, and what is taken off."""

    def numbers(block: bytes) -> list[float]:
        d, m = half(block, scale), 0.0 if least is None else half(block, least)
        fifth = 0 if high is None else int.from_bytes(block[high : high + 4], "little")
        found = [0.0] * 32
        for j in range(16):
            for at, q in ((j, block[quants + j] & 15), (j + 16, block[quants + j] >> 4)):
                found[at] = d * ((q | ((fifth >> at & 1) << 4)) - below) + m
        return found

    return numbers


def q8_0(block: bytes) -> list[float]:
    return [half(block, 0) * signed(byte) for byte in block[2:34]]


def q2_k(block: bytes) -> list[float]:
    d, m, found = half(block, 80), half(block, 82), []
    for part in range(2):
        for j in range(4):
            for i in range(32):
                scale = block[part * 8 + j * 2 + i // 16]
                q = block[16 + part * 32 + i] >> (2 * j) & 3
                found.append(d * (scale & 15) * q - m * (scale >> 4))
    return found


def q3_k(block: bytes) -> list[float]:
    d, scales, found = half(block, 108), block[96:108], []
    for part in range(2):
        for j in range(4):
            for i in range(32):
                s = part * 8 + j * 2 + i // 16
                low = scales[s] & 15 if s < 8 else scales[s - 8] >> 4
                scale = (low | ((scales[8 + s % 4] >> (2 * (s // 4)) & 3) << 4)) - 32
                q = block[32 + part * 32 + i] >> (2 * j) & 3
                found.append(d * scale * (q - (0 if block[i] >> (part * 4 + j) & 1 else 4)))
    return found


def scale_min(q: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return (q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4)


def q45_k(fifth: bool) -> Callable[[bytes], list[float]]:
    def numbers(block: bytes) -> list[float]:
        d, m, found = half(block, 0), half(block, 2), []
        quants = 48 if fifth else 16
        for j in range(8):
            scale, least = scale_min(block[4:16], j)
            for i in range(32):
                byte = block[quants + j // 2 * 32 + i]
                q = byte >> 4 if j % 2 else byte & 15
                q += 16 if fifth and block[16 + i] >> j & 1 else 0
                found.append(d * scale * q - m * least)
        return found

    return numbers


def q6_k(block: bytes) -> list[float]:
    d, found = half(block, 208), [0.0] * 256
    for part in range(2):
        low, high = block[part * 64 : part * 64 + 64], block[128 + part * 32 : 160 + part * 32]
        scales = block[192 + part * 8 : 200 + part * 8]
        for i in range(32):
            quads = (low[i] & 15, low[i + 32] & 15, low[i] >> 4, low[i + 32] >> 4)
            for k, q in enumerate(quads):
                value = (q | ((high[i] >> (2 * k) & 3) << 4)) - 32
                found[part * 128 + k * 32 + i] = d * signed(scales[2 * k + i // 16]) * value
    return found


def looked_up(d: float, quants: bytes, values: tuple[float, ...]) -> list[float]:
    return [d * values[byte & 15] for byte in quants] + [d * values[byte >> 4] for byte in quants]


def iq4_xs(block: bytes) -> list[float]:
    d, high, found = half(block, 0), int.from_bytes(block[2:4], "little"), []
    for j in range(8):
        scale = (block[4 + j // 2] >> (4 * (j % 2)) & 15) | ((high >> (2 * j) & 3) << 4)
        found += looked_up(d * (scale - 32), block[8 + 16 * j : 24 + 16 * j], IQ4)
    return found


class Kind(NamedTuple):
    """A type: its number in files, the numbers and bytes of a block, and what a block means."""

    number: int
    numbers: int
    size: int
    formula: Callable[[bytes], list[float]]


KINDS = {
    "Q4_0": Kind(2, 32, 18, simple(0, None, None, 2, 8)),
    "Q4_1": Kind(3, 32, 20, simple(0, 2, None, 4, 0)),
    "Q5_0": Kind(6, 32, 22, simple(0, None, 2, 6, 16)),
    "Q5_1": Kind(7, 32, 24, simple(0, 2, 4, 8, 0)),
    "Q8_0": Kind(8, 32, 34, q8_0),
    "Q2_K": Kind(10, 256, 84, q2_k),
    "Q3_K": Kind(11, 256, 110, q3_k),
    "Q4_K": Kind(12, 256, 144, q45_k(False)),
    "Q5_K": Kind(13, 256, 176, q45_k(True)),
    "Q6_K": Kind(14, 256, 210, q6_k),
    "IQ4_NL": Kind(20, 32, 18, lambda block: looked_up(half(block, 0), block[2:18], IQ4)),
    "IQ4_XS": Kind(23, 256, 136, iq4_xs),
    "MXFP4": Kind(39, 32, 17, lambda block: looked_up(2.0 ** (block[0] - 127), block[1:17], E2M1)),
    **{name: Kind(*about) for name, about in SMALL.items()},
}


def meaning(kind: str, data: bytes) -> Array:
    """The numbers of all blocks, in float64."""
    size, formula = KINDS[kind].size, KINDS[kind].formula
    return np.array([formula(data[at : at + size]) for at in range(0, len(data), size)])


def pack_q8_0(weight: Array) -> bytes:
    blocks = weight.reshape(-1, 32)
    d = (np.abs(blocks).max(1) / 127).astype("<f2")
    q = np.rint(blocks / np.maximum(d.astype("f4"), 1e-12)[:, None]).clip(-127, 127).astype("i1")
    return b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(d, q, strict=True))


def pack_q4_0(weight: Array) -> bytes:
    """A scale in float16 for each 32 numbers, and these in halves of bytes, 8 for 0."""
    groups = weight.reshape(-1, 32)
    d = (np.abs(groups).max(1) / 7).astype("<f2")
    q = np.clip(np.rint(groups / np.maximum(d.astype(np.float32), 1e-8)[:, None]) + 8, 0, 15).astype(np.uint8)
    return b"".join(own.tobytes() + (row[:16] | row[16:] << 4).tobytes() for own, row in zip(d, q, strict=True))


def pack_q4_k(weight: Array) -> bytes:
    """Scales and least numbers of 32 numbers each in 6 bits, numbers in 4."""
    packed = b""
    for block in weight.reshape(-1, 8, 32):
        low, high = np.minimum(block.min(1), 0), block.max(1)
        d = np.float16(max((high - low).max() / 15 / 63, 1e-7))
        m = np.float16(max(-low.min() / 63, 1e-7))
        scales = np.rint((high - low) / 15 / d).clip(1, 63).astype(int)
        least = np.rint(-low / m).clip(0, 63).astype(int)
        q = np.rint((block + (m * least)[:, None]) / (d * scales)[:, None]).clip(0, 15).astype("u1")
        bits = [int(scales[j] | (scales[j + 4] >> 4) << 6) for j in range(4)]
        bits += [int(least[j] | (least[j + 4] >> 4) << 6) for j in range(4)]
        bits += [int(scales[j + 4] & 15 | (least[j + 4] & 15) << 4) for j in range(4)]
        packed += d.tobytes() + m.tobytes() + bytes(bits) + (q[0::2] | q[1::2] << 4).tobytes()
    return packed


def pack_q6_k(weight: Array) -> bytes:
    """Scales of 16 numbers each in 8 bits, numbers in 6."""
    packed = b""
    for block in weight.reshape(-1, 16, 16):
        largest = np.abs(block).max(1)
        d = np.float16(max(largest.max() / 31 / 127, 1e-7))
        scales = np.rint(largest / 31 / d).clip(1, 127).astype("i1")
        q = np.rint(block / (d * scales.astype("f4"))[:, None]).clip(-32, 31).astype(int) + 32
        parts = q.reshape(2, 4, 32).astype("u1")
        low = b"".join(((part[:2] & 15) | (part[2:] & 15) << 4).tobytes() for part in parts)
        high = b"".join((sum((part[k] >> 4) << (2 * k) for k in range(4))).astype("u1").tobytes() for part in parts)
        packed += low + high + scales.tobytes() + d.tobytes()
    return packed


def random_blocks(kind: str, count: int, seed: int = 0) -> bytes:
    """Blocks of any bytes, but with scales that are numbers."""
    blocks = np.random.default_rng(seed).integers(0, 256, (count, KINDS[kind].size), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,), "MXFP4": ()}
    for at in (halves | HALVES).get(kind, (0,) if kind.startswith("IQ") else (0, 2)):
        blocks[:, at + 1] &= 0xBF  # of an exponent the highest bit: none is infinite
    if kind == "MXFP4":
        blocks[:, 0] = blocks[:, 0] % 64 + 90
    return blocks.tobytes()
