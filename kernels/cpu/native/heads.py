"""Heads of q and k between their product and attention: norms and rotations, by layers.c; all of it in float32."""

from __future__ import annotations

import ctypes
import math
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from .library import Library

_POINTER, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Turning(IntEnum):
    """layers.h's enum turning."""

    NONE = 0
    HALVES = 1
    PAIRS = 2
    PAIRS_OF_HALF = 3


class _HeadRules(ctypes.Structure):
    """layers.h's head_rules."""

    _fields_ = (
        *((name, _NUMBER) for name in ("heads", "kv_heads", "head_dim", "kind", "turned", "norm_last")),
        *((name, _NUMBER) for name in ("q_size", "k_size")),
        *((name, _POINTER) for name in ("q_gain", "k_gain")),
        *((name, _FLOAT) for name in ("q_floor", "k_floor")),
    )


class HeadNorm(NamedTuple):
    """A norm over each `len(gain)` numbers of all heads."""

    gain: Tensor
    eps: float


class HeadRules(NamedTuple):
    """How heads of q and k become what attention is given."""

    heads: int
    kv_heads: int
    head_dim: int
    kind: Turning = Turning.NONE
    turned: int = 0  # numbers of a head that turn
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    norm_last: bool = False  # norms come behind the rotation


class TurnedHeads:
    """Heads of q and k in rows of q, k and v: normed, and turned by the cosines and sines of each row, in place."""

    def __init__(self, library: Library, rules: HeadRules) -> None:
        self.library, self.rules = library, rules
        numbers = (rules.heads * rules.head_dim, rules.kv_heads * rules.head_dim)
        norms = (rules.q_norm, rules.k_norm)
        self._gains = [None if norm is None else _gains(norm, size) for norm, size in zip(norms, numbers, strict=True)]
        own = _HeadRules(*rules[:3], rules.kind, rules.turned, rules.norm_last, 1, 1, *map(_address, self._gains))
        if rules.q_norm is not None:
            own.q_size, own.q_floor = len(rules.q_norm.gain), rules.q_norm.eps * len(rules.q_norm.gain)
        if rules.k_norm is not None:
            own.k_size, own.k_floor = len(rules.k_norm.gain), rules.k_norm.eps * len(rules.k_norm.gain)
        self._own, self.address = own, ctypes.addressof(own)  # layers.h's head_rules
        places = (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER)
        self._run = library.function("turn_heads", *places, _NUMBER, _NUMBER)

    def __call__(self, qkv: Tensor, cosines: Tensor | None, sines: Tensor | None) -> None:
        """`qkv` [rows, …] in float32; `cosines` and `sines` [rows, turned], None where nothing turns."""
        tables: tuple[int | None, int | None] = (None, None)
        if cosines is not None and sines is not None:
            cosines, sines = cosines.contiguous(), sines.contiguous()
            assert len(cosines) == len(sines) == len(qkv) and cosines.shape[1] == self.rules.turned
            tables = (cosines.data_ptr(), sines.data_ptr())
        self._run(self.library.pool, self.address, qkv.data_ptr(), *tables, qkv.stride(0), len(qkv))


def _gains(norm: HeadNorm, numbers: int) -> Tensor:
    """Of all heads, with the root of the size in them."""
    size = len(norm.gain)
    return (norm.gain.float() * math.sqrt(size)).repeat(numbers // size)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
