"""The formats of kernels/cpu/kv_formats.py in float64, from what their names mean: the numbers that codes stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.pool_memory import QuantisedPool

Floats = np.ndarray
BITS = {"turbo4": 4, "turbo3": 3}
BYTES = {"int8": 16, "fp8": 16, "nvfp4": 9, "turbo4": 8, "turbo3": 6}  # of 16 numbers


def decode(kept: str, codes: np.ndarray, scales: np.ndarray) -> Floats:
    """Numbers [..., width] of codes [..., bytes] and scales [...]."""
    groups = codes.reshape(*codes.shape[:-1], -1, BYTES[kept]) if kept not in ("int8", "fp8") else codes
    made = {"int8": _int8, "fp8": _fp8, "nvfp4": _nvfp4, "turbo4": _turbo4, "turbo3": _turbo3}[kept](groups)
    numbers = made.reshape(*codes.shape[:-1], -1) * scales.astype(np.float64)[..., None]
    return numbers @ rotation(numbers.shape[-1]) if kept in BITS else numbers


def codes_of(pool: QuantisedPool) -> Sequence[Tensor]:
    """Of keys, and of values."""
    return pool.codes.unbind(1) if isinstance(pool.codes, Tensor) else pool.codes


def read(pool: QuantisedPool, layer: int, slots: Tensor) -> Iterator[Tensor]:
    """Keys, and values, of these slots, [tokens, kv_heads, width] in float64."""
    formats = (pool.kind.keys, pool.kind.values)
    for codes, scales, kept in zip(codes_of(pool), pool.scales[layer], formats, strict=True):
        lying = codes[layer][:, slots].transpose(0, 1), scales[:, slots].T
        yield torch.from_numpy(decode(kept.name, *(part.numpy() for part in lying)))


def levels(kept: str) -> np.ndarray:
    """All numbers that a code without its scale may be."""
    if kept in BITS:
        return np.array(lloyd(1 << BITS[kept]))
    if kept == "int8":
        return np.arange(-127.0, 128.0)
    tiny, sizes = range(8), [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]  # the last is NaN
    return np.unique([sign * size for size in [*(m * 2.0**-9 for m in tiny), *sizes] for sign in (1, -1)])


def rotation(width: int) -> np.ndarray:
    """The matrix R by which a head of keys becomes R · head: rows that are orthogonal, and as long as 1."""
    most = 1 << (width.bit_length() - 1)
    made = np.eye(width)
    made[:most, :most] = _hadamard(most)
    made = made @ np.diag([_sign(place) for place in range(width)])
    if most < width:
        again = np.eye(width)
        again[-most:, -most:] = _hadamard(most)
        made = again @ made
    return made


@cache
def lloyd(count: int) -> tuple[float, ...]:
    """The numbers that tell those of a normal distribution with the least mean of squares: each is the mean of what is
    nearest to it."""
    sizes = [(place + 0.5) * 6 / count for place in range(count // 2)]
    for _ in range(20000):
        ends = [0.0, *((one + other) / 2 for one, other in pairwise(sizes)), math.inf]
        new = [(_density(low) - _density(high)) / (_above(low) - _above(high)) for low, high in pairwise(ends)]
        sizes, moved = new, max(abs(one - other) for one, other in zip(sizes, new, strict=True))
        if moved < 1e-14:
            break
    return (*(-size for size in reversed(sizes)), *sizes)


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _above(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def _hadamard(size: int) -> np.ndarray:
    """By the parity of the bits that a row and a column have in common."""
    row, column = np.meshgrid(np.arange(size), np.arange(size))
    common = row & column
    parity = np.array([bin(number).count("1") % 2 for number in common.ravel()]).reshape(size, size)
    return np.where(parity == 1, -1.0, 1.0) / math.sqrt(size)


def _sign(place: int) -> float:
    hashed = place * 0x9E3779B1 % 2**32
    hashed = (hashed ^ hashed >> 15) * 0x85EBCA6B % 2**32
    return -1.0 if (hashed ^ hashed >> 13) % 2 else 1.0


def _int8(codes: np.ndarray) -> Floats:
    return codes.astype(np.float64)


def _fp8(codes: np.ndarray) -> Floats:
    exponent, rest = (codes >> 3 & 15).astype(int), (codes & 7).astype(np.float64)
    size = np.where(exponent == 0, rest / 8 * 2.0**-6, (1 + rest / 8) * 2.0 ** (exponent - 7))
    made: Floats = np.where(codes >> 7 == 1, -size, size)
    return made


def _nvfp4(groups: np.ndarray) -> Floats:
    codes = _nibbles(groups[..., :8])
    size = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7]
    made: Floats = np.where(codes >> 3 == 1, -size, size) * _fp8(groups[..., 8:])
    return made


def _turbo4(groups: np.ndarray) -> Floats:
    codes = _nibbles(groups)
    size = np.array(lloyd(16)[8:])[codes & 7]
    made: Floats = np.where(codes >> 3 == 1, -size, size)
    return made


def _turbo3(groups: np.ndarray) -> Floats:
    places = np.arange(16)
    size = np.array(lloyd(8)[4:])[groups[..., places // 4] >> 2 * (places % 4) & 3]
    made: Floats = np.where(groups[..., 4 + places // 8] >> places % 8 & 1 == 1, -size, size)
    return made


def _nibbles(codes: np.ndarray) -> np.ndarray:
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
