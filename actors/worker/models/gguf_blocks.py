"""Numbers of the types that GGUF files have: one pure function each, from blocks of bytes to float32.

A function takes uint8 [blocks, bytes of a block] and returns float32 [blocks, numbers of a block]. d and m are a
block's scale and least number, in float16; q what is stored of a number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .gguf_small import DECODERS as SMALL

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice what they are


def q8_0(blocks: Tensor) -> Tensor:
    """d · q."""
    return blocks[:, 2:].view(torch.int8) * _half(blocks, 0)


def q8_0_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers q as int8, and d in float16 [blocks]."""
    return blocks[:, 2:].contiguous().view(torch.int8), blocks[:, :2].contiguous().view(torch.float16).view(-1)


def q4_0(blocks: Tensor) -> Tensor:
    """d · (q - 8)."""
    return (_nibbles(blocks[:, 2:]) - 8.0) * _half(blocks, 0)


def q4_0_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers q as uint8, and d in float16 [blocks]."""
    return _nibbles(blocks[:, 2:]), blocks[:, :2].contiguous().view(torch.float16).view(-1)


def q4_1(blocks: Tensor) -> Tensor:
    """d · q + m."""
    return _nibbles(blocks[:, 4:]) * _half(blocks, 0) + _half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    """d · (q - 16); the fifth bits stand together."""
    return (_nibbles(blocks[:, 6:]) + 16.0 * _bits(blocks[:, 2:6]) - 16.0) * _half(blocks, 0)


def q5_1(blocks: Tensor) -> Tensor:
    """d · q + m."""
    return (_nibbles(blocks[:, 8:]) + 16.0 * _bits(blocks[:, 4:8])) * _half(blocks, 0) + _half(blocks, 2)


def q2_k(blocks: Tensor) -> Tensor:
    """d · s · q - m · t, with s and t of 4 bits for each 16 numbers."""
    scales, q = blocks[:, :16], _pairs_of_bits(blocks[:, 16:80]).reshape(-1, 16, 16)
    d, m = _half(blocks, 80) * (scales & 15), _half(blocks, 82) * (scales >> 4)
    return (q * d[..., None] - m[..., None]).flatten(1)


def q3_k(blocks: Tensor) -> Tensor:
    """d · (s - 32) · (q - 4), with s of 6 bits for each 16 numbers; the third bits of q stand apart."""
    third = (blocks[:, None, :32] >> _shifts(blocks, 8, 1)) & 1  # [blocks, 8, 32]
    q = _pairs_of_bits(blocks[:, 32:96]) + 4.0 * third.flatten(1) - 4.0
    low, high = _nibbles(blocks[:, 96:104]), _pairs_of_bits(blocks[:, 104:108], 4)
    d = _half(blocks, 108) * (low + 16.0 * high - 32.0)
    return (q.view(-1, 16, 16) * d[..., None]).flatten(1)


def q4_k(blocks: Tensor) -> Tensor:
    """d · s · q - m · t, with s and t of 6 bits for each 32 numbers."""
    d, m = _scales_k(blocks)
    q = _nibbles(blocks[:, 16:].reshape(-1, 32)).view(-1, 8, 32)
    return (q * d[..., None] - m[..., None]).flatten(1)


def q4_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, s and t as uint8, and d beside m in float16 [blocks, 2]."""
    numbers = _nibbles(blocks[:, 16:].reshape(-1, 32)).view(len(blocks), -1)
    return numbers, *_small_k(blocks), blocks[:, :4].contiguous().view(torch.float16)


def q5_k(blocks: Tensor) -> Tensor:
    """The same; the fifth bits of numbers that are 32 apart stand in a byte."""
    d, m = _scales_k(blocks)
    fifth = (blocks[:, None, 16:48] >> _shifts(blocks, 8, 1)) & 1  # [blocks, 8, 32]
    q = _nibbles(blocks[:, 48:].reshape(-1, 32)).view(-1, 8, 32) + 16.0 * fifth
    return (q * d[..., None] - m[..., None]).flatten(1)


def q6_k(blocks: Tensor) -> Tensor:
    """d · s · (q - 32), with s of 8 bits for each 16 numbers."""
    numbers, d, s = q6_k_parts(blocks)
    return ((numbers - 32.0).view(-1, 16, 16) * (d[:, None] * s)[..., None]).flatten(1)


def q6_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q as uint8, d in float32 [blocks] and s as int8 [blocks, 16]."""
    low = _nibbles(blocks[:, :128].reshape(-1, 64))  # of 128 numbers
    numbers = (low | _pairs_of_bits(blocks[:, 128:192]).view(low.shape) << 4).view(len(blocks), -1)
    return numbers, _half(blocks, 208)[:, 0], blocks[:, 192:208].contiguous().view(torch.int8)


def iq4_nl(blocks: Tensor) -> Tensor:
    """d · v[q]."""
    return _looked_up(blocks[:, 2:], IQ4_VALUES) * _half(blocks, 0)


def iq4_xs(blocks: Tensor) -> Tensor:
    """d · (s - 32) · v[q], with s of 6 bits for each 32 numbers."""
    halves = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], -1).flatten(1)
    high = torch.stack([(blocks[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], -1).flatten(1)
    d = _half(blocks, 0) * (halves + 16.0 * high - 32.0)
    values = _looked_up(blocks[:, 8:].reshape(-1, 16), IQ4_VALUES).view(-1, 8, 32)
    return (values * d[..., None]).flatten(1)


def mxfp4(blocks: Tensor) -> Tensor:
    """2^(e - 127) · v[q], with v in halves."""
    half = torch.ldexp(torch.ones(len(blocks), 1), blocks[:, :1].int() - 128)
    return _looked_up(blocks[:, 1:], MXFP4_VALUES) * half


DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
    **SMALL,
}


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte, [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return torch.cat([packed & 15, packed >> 4], 1)


def _bits(packed: Tensor) -> Tensor:
    """Each bit, the lowest of the first byte first."""
    return ((packed[..., None] >> _shifts(packed, 8, 1)[:, :, 0]) & 1).flatten(1)


def _pairs_of_bits(packed: Tensor, run: int = 32) -> Tensor:
    """Of each `run` bytes the lowest two bits of all, then the next two, …"""
    runs = packed.reshape(len(packed), -1, 1, run)
    return ((runs >> _shifts(packed, 4, 2)[None]) & 3).flatten(1)


def _shifts(like: Tensor, count: int, step: int) -> Tensor:
    """0, step, 2 · step, … [1, count, 1]."""
    return torch.arange(0, count * step, step, dtype=torch.uint8, device=like.device)[None, :, None]


def _scales_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(d · s, m · t), both [blocks, 8]."""
    scales, least = _small_k(blocks)
    return _half(blocks, 0) * scales, _half(blocks, 2) * least


def _small_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(s, t), both [blocks, 8], of 12 bytes: four s, four t, and four with the lower halves of the others, whose upper
    two bits are those of the first eight.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (low & 15) | ((first >> 6) << 4)], 1)
    return scales, torch.cat([second & 63, (low >> 4) | ((second >> 6) << 4)], 1)


def _looked_up(packed: Tensor, values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[_nibbles(packed).long()]
