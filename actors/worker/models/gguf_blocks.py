"""Numbers of the types that GGUF files have: one pure function each, from blocks of bytes to float32.

A function takes uint8 [blocks, bytes of a block] and returns float32 [blocks, numbers of a block]. d and m are a
block's scale and least number, in float16; q what is stored of a number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .gguf_small import DECODERS as SMALL
from .gguf_small import half

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice what they are


def q8_0(blocks: Tensor) -> Tensor:
    """d · q."""
    return blocks[:, 2:].view(torch.int8) * half(blocks, 0)


def q8_0_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers q as int8, and d in float16 [blocks]."""
    return blocks[:, 2:].contiguous().view(torch.int8), blocks[:, :2].contiguous().view(torch.float16).view(-1)


def q4_0(blocks: Tensor) -> Tensor:
    """d · (q - 8)."""
    return (nibbles(blocks[:, 2:]) - 8.0) * half(blocks, 0)


def q4_0_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers q as uint8, and d in float16 [blocks]."""
    return nibbles(blocks[:, 2:]), blocks[:, :2].contiguous().view(torch.float16).view(-1)


def q4_1(blocks: Tensor) -> Tensor:
    """d · q + m."""
    return q4_1_numbers(blocks) * half(blocks, 0) + half(blocks, 2)


def q4_1_numbers(blocks: Tensor) -> Tensor:
    """q as uint8."""
    return nibbles(blocks[:, 4:])


def q5_0(blocks: Tensor) -> Tensor:
    """d · (q - 16)."""
    return (q5_numbers(blocks, 2) - 16.0) * half(blocks, 0)


def q5_1(blocks: Tensor) -> Tensor:
    """d · q + m."""
    return q5_numbers(blocks, 4) * half(blocks, 0) + half(blocks, 2)


def q5_numbers(blocks: Tensor, at: int) -> Tensor:
    """q as uint8; the fifth bits stand together, from the byte `at` on, before the others."""
    return nibbles(blocks[:, at + 4 :]) | _bits(blocks[:, at : at + 4]) << 4


def q2_k(blocks: Tensor) -> Tensor:
    """d · s · q - m · t, with s and t of 4 bits for each 16 numbers."""
    q, s, t, above = q2_k_parts(blocks)
    d, m = (above[:, at, None].float() for at in range(2))
    return (q.view(-1, 16, 16) * (d * s)[..., None] - (m * t)[..., None]).flatten(1)


def q2_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As those of Q4_K."""
    scales = blocks[:, :16]
    return _pairs_of_bits(blocks[:, 16:80]), scales & 15, scales >> 4, halves(blocks, 80, 2)


def q3_k(blocks: Tensor) -> Tensor:
    """d · (s - 32) · (q - 4), with s of 6 bits for each 16 numbers."""
    q, s, d = q3_k_parts(blocks)
    return ((q - 4.0).view(-1, 16, 16) * (d.float() * s)[..., None]).flatten(1)


def q3_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q as uint8, whose third bits stand apart, s - 32 as int8 and d in float16 [blocks, 1]."""
    third = (blocks[:, None, :32] >> _shifts(blocks, 8, 1)) & 1  # [blocks, 8, 32]
    q = _pairs_of_bits(blocks[:, 32:96]) | third.flatten(1) << 2
    low, high = nibbles(blocks[:, 96:104]), _pairs_of_bits(blocks[:, 104:108], 4)
    return q, ((low | high << 4).to(torch.int8) - 32), halves(blocks, 108, 1)


def q4_k(blocks: Tensor) -> Tensor:
    """d · s · q - m · t, with s and t of 6 bits for each 32 numbers."""
    d, m = _scales_k(blocks)
    q = nibbles(blocks[:, 16:].reshape(-1, 32)).view(-1, 8, 32)
    return (q * d[..., None] - m[..., None]).flatten(1)


def q4_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, s and t as uint8, and d beside m in float16 [blocks, 2]."""
    numbers = nibbles(blocks[:, 16:].reshape(-1, 32)).view(len(blocks), -1)
    return numbers, *_small_k(blocks), halves(blocks, 0, 2)


def q5_k(blocks: Tensor) -> Tensor:
    """The same."""
    d, m = _scales_k(blocks)
    return (q5_k_parts(blocks)[0].view(-1, 8, 32) * d[..., None] - m[..., None]).flatten(1)


def q5_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As those of Q4_K; the fifth bits of numbers that are 32 apart stand in a byte."""
    fifth = (blocks[:, None, 16:48] >> _shifts(blocks, 8, 1)) & 1  # [blocks, 8, 32]
    numbers = nibbles(blocks[:, 48:].reshape(-1, 32)).view(-1, 8, 32) | fifth << 4
    return numbers.flatten(1), *_small_k(blocks), halves(blocks, 0, 2)


def q6_k(blocks: Tensor) -> Tensor:
    """d · s · (q - 32), with s of 8 bits for each 16 numbers."""
    numbers, d, s = q6_k_parts(blocks)
    return ((numbers - 32.0).view(-1, 16, 16) * (d[:, None] * s)[..., None]).flatten(1)


def q6_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q as uint8, d in float32 [blocks] and s as int8 [blocks, 16]."""
    low = nibbles(blocks[:, :128].reshape(-1, 64))  # of 128 numbers
    numbers = (low | _pairs_of_bits(blocks[:, 128:192]).view(low.shape) << 4).view(len(blocks), -1)
    return numbers, half(blocks, 208)[:, 0], blocks[:, 192:208].contiguous().view(torch.int8)


def iq4_nl(blocks: Tensor) -> Tensor:
    """d · v[q]."""
    return iq4_values(blocks[:, 2:]) * half(blocks, 0)


def iq4_values(packed: Tensor) -> Tensor:
    """v[q]."""
    return _looked_up(packed, IQ4_VALUES)


def iq4_xs(blocks: Tensor) -> Tensor:
    """d · (s - 32) · v[q]."""
    values, s, d = iq4_xs_parts(blocks)
    return (values.view(-1, 8, 32) * (d.float() * s)[..., None]).flatten(1)


def iq4_xs_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v[q] in float32, s - 32 as int8, of 6 bits for each 32 numbers, and d in float16 [blocks, 1]."""
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], -1).flatten(1)
    high = torch.stack([(blocks[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], -1).flatten(1)
    values = iq4_values(blocks[:, 8:].reshape(-1, 16)).view(len(blocks), -1)
    return values, (low | high << 4).to(torch.int8) - 32, halves(blocks, 0, 1)


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


def halves(blocks: Tensor, at: int, count: int) -> Tensor:
    """So many from a byte on, in float16 [blocks, count]."""
    return blocks[:, at : at + 2 * count].contiguous().view(torch.float16)


def nibbles(packed: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return torch.cat([packed & 15, packed >> 4], 1)


def _bits(packed: Tensor) -> Tensor:
    """Each bit, the lowest of the first byte first."""
    return ((packed[..., None] >> _shifts(packed, 8, 1)[:, :, 0]) & 1).flatten(1)


def _pairs_of_bits(packed: Tensor, run: int = 32) -> Tensor:
    """Of each `run` bytes the lowest two bits of all, then the next two, …, of four bytes at a time."""
    copied = packed.clone(memory_format=torch.contiguous_format)  # one block alone is contiguous, with odd strides
    runs = copied.view(torch.int32).view(len(packed), -1, 1, run // 4)
    shifts = torch.arange(0, 8, 2, dtype=torch.int32, device=packed.device)[:, None]
    return ((runs >> shifts) & 0x03030303).view(torch.uint8).flatten(1)


def _shifts(like: Tensor, count: int, step: int) -> Tensor:
    """0, step, 2 · step, … [1, count, 1]."""
    return torch.arange(0, count * step, step, dtype=torch.uint8, device=like.device)[None, :, None]


def _scales_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(d · s, m · t), both [blocks, 8]."""
    scales, least = _small_k(blocks)
    return half(blocks, 0) * scales, half(blocks, 2) * least


def _small_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(s, t), both [blocks, 8], of 12 bytes: four s, four t, and four with the lower halves of the others, whose upper
    two bits are those of the first eight.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (low & 15) | ((first >> 6) << 4)], 1)
    return scales, torch.cat([second & 63, (low >> 4) | ((second >> 6) << 4)], 1)


def _looked_up(packed: Tensor, values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[nibbles(packed).long()]
