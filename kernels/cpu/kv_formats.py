"""Keys and values of 8 bits and fewer: a head of numbers becomes codes with a scale, and numbers again.

What is read is code · scale, the scale in float32, one for each token and head, keys and values apart; a head with a
number that is none, or infinite, has a scale that is no number. To the nearest code, all in float32:

    int8    scale = max |x| / 127             code = x / scale, ties to even
    fp8     scale = 2^n, the least for which no |x| / 2^n is above 448, the largest e4m3; code = e4m3 of x / scale, ties
            to even: what kernels/triton/quantised_kv.py keeps on a GPU
    nvfp4   scale = max |x| / (6 · 448)       of each GROUP numbers step = e4m3 of max |x| / 6 / scale, and e2m1 of
            x / (step · scale), ties to even; what is read is e2m1 · step · scale. NVIDIA's format has one scale for a
            whole tensor, which has to be found beforehand; one for each token and head needs nothing
    turbo4, turbo3   TurboQuant: the head is turned (signs, and Hadamard's matrix), by which its numbers come to be as
            if of a normal distribution whatever they were, and each becomes the nearest of the 16 or 8 numbers that
            tell such a one with the least mean of squares (Lloyd, Max). The scale is that by which the codes have the
            length of the head; what is read is turned back

The layout of codes stands in native/codes.h. Here all of it is done by operations whose bits for a head do not depend
on which other heads are done beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import GROUP, KVFormat

LARGEST_INT8 = 127
LARGEST_E4M3 = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three lower bits; the fourth is the sign
LLOYD_4 = (0.12839503, 0.388048299, 0.656759119, 0.942340456, 1.2562312, 1.61804639, 2.06901723, 2.73258957)
LLOYD_3 = (0.245094179, 0.756005281, 1.34390928, 2.1519457)
BELOW_1, BELOW_2, BELOW_4 = 0.75 - 2.0**-24, 1.75 - 2.0**-23, 3.5 - 2.0**-22  # the next lower: what is there goes up
E2M1_BOUNDS = (0.25, BELOW_1, 1.25, BELOW_2, 2.5, BELOW_4, 5.0)
LLOYD_4_BOUNDS = (0.258221665, 0.522403709, 0.799549788, 1.09928583, 1.43713879, 1.84353181, 2.4008034)
LLOYD_3_BOUNDS = (0.50054973, 1.04995728, 1.74792749)


Encode = Callable[[Tensor], tuple[Tensor, Tensor]]


class Codec(NamedTuple):
    """How heads [..., width] of float32 become codes [..., bytes] and scales [...], and what is to be scaled again."""

    storage: torch.dtype
    encode: Encode
    decode: Callable[[Tensor], Tensor]
    turned: bool = False  # what is decoded has to be turned back


def storage_of(kept: KVFormat) -> torch.dtype:
    """The type of the memory."""
    found: torch.dtype = CODECS[kept.name].storage if kept.scale_bytes else getattr(torch, kept.name)
    return found


def width_of(kept: KVFormat, row: int) -> int:
    """How many numbers a head has of which this many of the memory's type are kept."""
    return row * storage_of(kept).itemsize * GROUP // kept.group_bytes


def quantise(values: Tensor, kept: str = "int8") -> tuple[Tensor, Tensor]:
    """(codes, scales) of heads [..., width]."""
    exact = values.float()
    codes, scales = CODECS[kept].encode(exact)
    return codes, torch.where(exact.isfinite().all(-1) & scales.isfinite(), scales, torch.nan)


def restore(kept: str, codes: Tensor, scales: Tensor, out: Tensor) -> None:
    """The numbers that codes [..., bytes] and scales [...] stand for, to `out` [..., width]."""
    codec = CODECS[kept]
    out.copy_(codec.decode(codes))
    out.mul_(scales[..., None])
    if codec.turned:
        out.copy_(turned_back(out))


def _int8(exact: Tensor) -> tuple[Tensor, Tensor]:
    scales = exact.abs().amax(-1) / LARGEST_INT8
    codes = exact / torch.where(scales > 0, scales, 1.0)[..., None]
    return codes.round_().nan_to_num_(0.0).clamp_(-LARGEST_INT8, LARGEST_INT8).to(torch.int8), scales


def _e4m3(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)


def _fp8(exact: Tensor) -> tuple[Tensor, Tensor]:
    bits = exact.abs().amax(-1).nan_to_num(0.0, 0.0).view(torch.int32)
    scales = (((bits + 0x1FFFFF >> 23) - 8).clamp(min=1) << 23).view(torch.float32)
    return _e4m3(exact / scales[..., None]).view(torch.uint8), scales


def _nvfp4(exact: Tensor) -> tuple[Tensor, Tensor]:
    scales = exact.abs().amax(-1) / (E2M1[-1] * LARGEST_E4M3)
    groups = exact.unflatten(-1, (-1, GROUP))
    by = torch.where(scales > 0, scales, 1.0)[..., None]
    steps = _e4m3(groups.abs().amax(-1) / E2M1[-1] / by)
    whole = steps.float() * scales[..., None]
    signed = _signed(groups / torch.where(whole > 0, whole, torch.inf)[..., None], E2M1_BOUNDS)
    return torch.cat([_halves(signed), steps.view(torch.uint8)[..., None]], -1).flatten(-2), scales


def _nvfp4_numbers(codes: Tensor) -> Tensor:
    groups = codes.unflatten(-1, (-1, 9))
    steps = groups[..., 8:].contiguous().view(torch.float8_e4m3fn).float()
    return torch.flatten(_of_halves(groups[..., :8], _table(E2M1)) * steps, -2)


def _signed(values: Tensor, bounds: tuple[float, ...]) -> Tensor:
    """The number of the nearest size, and above it the sign."""
    sizes = torch.bucketize(values.abs(), torch.tensor(bounds), out_int32=True)
    return (sizes + (values < 0) * (len(bounds) + 1)).to(torch.uint8)


def _halves(signed: Tensor) -> Tensor:
    """Two in a byte."""
    return signed[..., 0::2] | signed[..., 1::2] << 4


def _of_halves(codes: Tensor, table: Tensor) -> Tensor:
    both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    return table[both.int()]


@cache
def _table(sizes: tuple[float, ...]) -> Tensor:
    return torch.tensor([*sizes, *(-size for size in sizes)])


def _turbo(bounds: tuple[float, ...], sizes: tuple[float, ...], pack: Callable[[Tensor], Tensor]) -> Encode:
    def encode(exact: Tensor) -> tuple[Tensor, Tensor]:
        own = turned(exact)
        norms = _length(own)
        by = _root(exact.shape[-1]) / norms
        signed = _signed(own * torch.where(norms > 0, by, 0.0)[..., None], bounds)
        return pack(signed), norms / _length(_table(sizes)[signed.int()])

    return encode


def _threes(signed: Tensor) -> Tensor:
    """Of each group four sizes in a byte, then eight signs in one."""
    groups = signed.unflatten(-1, (-1, GROUP))
    sizes, signs = (groups & 3).unflatten(-1, (4, 4)), (groups >> 2).unflatten(-1, (2, 8))
    return torch.cat([_in_byte(sizes, 2), _in_byte(signs, 1)], -1).flatten(-2)


def _in_byte(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., 8 / bits] of so many bits each, which the first has lowest."""
    return (codes << torch.arange(0, 8, bits, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def _threes_numbers(codes: Tensor) -> Tensor:
    groups = codes.unflatten(-1, (-1, 6))
    sizes = torch.stack([groups[..., :4] >> 2 * place & 3 for place in range(4)], -1).flatten(-2)
    signs = torch.stack([groups[..., 4:] >> place & 1 for place in range(8)], -1).flatten(-2)
    return _table(LLOYD_3)[(sizes | signs << 2).int()].flatten(-2)


def turned(heads: Tensor) -> Tensor:
    """Heads [..., width] by a rotation that is the same for all: signs, then Hadamard's matrix for the first numbers
    that are a power of two, and for the last as many."""
    width = heads.shape[-1]
    most = 1 << (width.bit_length() - 1)
    made = heads * _signs(width)
    made = torch.cat([_mixed(made[..., :most]), made[..., most:]], -1)
    return made if most == width else torch.cat([made[..., : width - most], _mixed(made[..., width - most :])], -1)


def turned_back(heads: Tensor) -> Tensor:
    """What was turned."""
    width = heads.shape[-1]
    most = 1 << (width.bit_length() - 1)
    if most < width:
        heads = torch.cat([heads[..., : width - most], _mixed(heads[..., width - most :])], -1)
    return torch.cat([_mixed(heads[..., :most]), heads[..., most:]], -1) * _signs(width)


@cache
def _signs(width: int) -> Tensor:
    """As native/codes.h: sign_at."""
    place = torch.arange(width) * 0x9E3779B1 & 0xFFFFFFFF
    place = (place ^ place >> 15) * 0x85EBCA6B & 0xFFFFFFFF
    return torch.where((place ^ place >> 13) & 1 == 1, -1.0, 1.0)


def _mixed(heads: Tensor) -> Tensor:
    """By Hadamard's matrix, as sums and differences."""
    width = heads.shape[-1]
    for level in range(width.bit_length() - 1):
        one, other = heads.unflatten(-1, (-1, 2, 1 << level)).unbind(-2)
        heads = torch.stack([one + other, one - other], -2).flatten(-3)
    return heads * float(np.float32(1) / np.float32(_root(width)))


def _length(heads: Tensor) -> Tensor:
    """The root of the sum of squares, which are added by halves of what is filled up to a power of two."""
    width = heads.shape[-1]
    whole = 1 << math.ceil(math.log2(width))
    sums = torch.nn.functional.pad(heads * heads, (0, whole - width))
    while whole > 1:
        whole //= 2
        sums = sums[..., :whole] + sums[..., whole:]
    return torch.from_numpy(np.sqrt(sums[..., 0].numpy()))  # torch's may be the number beside the nearest


def _root(width: int) -> float:
    """In float32."""
    return float(np.sqrt(np.float32(width)))


CODECS = {
    "int8": Codec(torch.int8, _int8, Tensor.float),
    "fp8": Codec(torch.uint8, _fp8, lambda codes: codes.view(torch.float8_e4m3fn).float()),
    "nvfp4": Codec(torch.uint8, _nvfp4, _nvfp4_numbers),
    "turbo4": Codec(
        torch.uint8,
        _turbo(LLOYD_4_BOUNDS, LLOYD_4, _halves),
        lambda codes: _of_halves(codes, _table(LLOYD_4)),
        turned=True,
    ),
    "turbo3": Codec(
        torch.uint8,
        _turbo(LLOYD_3_BOUNDS, LLOYD_3, _threes),
        _threes_numbers,
        turned=True,
    ),
}
