"""Numbers of the GGUF types of 1 to 3 bits, of ternary ones, and of NVFP4, as gguf_blocks.py has them of all others.

Most name vectors of a grid (gguf_grids.py) and have signs apart: g is a number of such a vector, ± its sign, s a small
scale in the block and d its scale in float16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .gguf_grids import vectors

DELTA = 0.125  # by which all numbers of a vector are moved up or down, in types of one bit
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice what they are
NO_NUMBER = 0x7F  # as a scale in 8 bits, which stands for 0


def iq2_xxs(blocks: Tensor) -> Tensor:
    """d/4 · (s + ½) · ±g: 32 numbers have four vectors of 8, then four times 7 bits of signs, and s in the last 4."""
    groups = blocks[:, 2:].reshape(len(blocks), 8, 8)
    word = _whole(groups[..., 4:], 4)[..., 0]
    d = half(blocks) * (0.5 + (word >> 28)) / 4
    g = vectors("IQ2_XXS")[groups[..., :4].long()]
    return (d[..., None, None] * g * _even_signs(word)).flatten(1)


def iq2_xs(blocks: Tensor) -> Tensor:
    """The same; 9 bits name a vector, 7 are its signs, and 16 numbers have an s."""
    words = _whole(blocks[:, 2:66], 2)
    d = half(blocks) * (0.5 + _halves(blocks[:, 66:])) / 4
    numbers = vectors("IQ2_XS")[words & 511] * _signs(_with_parity(words >> 9))
    return (d[..., None, None] * numbers.view(-1, 16, 2, 8)).flatten(1)


def iq2_s(blocks: Tensor) -> Tensor:
    """The same; 10 bits name a vector, the highest 2 of which stand apart, and 8 are its signs."""
    low, signs, high = blocks[:, 2:34].long(), blocks[:, 34:66].long(), _parts(blocks[:, 66:74], 4, 2)
    d = half(blocks) * (0.5 + _halves(blocks[:, 74:])) / 4
    numbers = vectors("IQ2_S")[low | (high << 8)] * _signs(signs)
    return (d[..., None, None] * numbers.view(-1, 16, 2, 8)).flatten(1)


def iq3_xxs(blocks: Tensor) -> Tensor:
    """d/2 · (s + ½) · ±g, with vectors of 4; signs and s as in iq2_xxs."""
    word = _whole(blocks[:, 66:], 4)
    d = half(blocks) * (0.5 + (word >> 28)) / 2
    g = vectors("IQ3_XXS")[blocks[:, 2:66].long()].view(-1, 8, 4, 8)
    return (d[..., None, None] * g * _even_signs(word)).flatten(1)


def iq3_s(blocks: Tensor) -> Tensor:
    """d · (2s + 1) · ±g, with vectors of 4 of 9 bits, the highest of which stand apart; 32 numbers have an s."""
    names = blocks[:, 2:66].long() | (_parts(blocks[:, 66:74], 8, 1) << 8)
    d = half(blocks) * (1 + 2 * _halves(blocks[:, 106:]))
    numbers = vectors("IQ3_S")[names].view(-1, 8, 4, 8) * _signs(blocks[:, 74:106].long()).view(-1, 8, 4, 8)
    return (d[..., None, None] * numbers).flatten(1)


def iq1_s(blocks: Tensor) -> Tensor:
    """d · (2s + 1) · (g ± ⅛): 32 numbers have four vectors of 11 bits, s, and which way they are moved."""
    word = _whole(blocks[:, 34:], 2)
    names = blocks[:, 2:34].long().view(-1, 8, 4) | ((word[..., None] >> torch.tensor([0, 3, 6, 9]) & 7) << 8)
    d = half(blocks) * (2 * (word >> 12 & 7) + 1)
    moved = vectors("IQ1")[names] + DELTA * (1.0 - 2.0 * (word >> 15))[..., None, None]
    return (d[..., None, None] * moved).flatten(1)


def iq1_m(blocks: Tensor) -> Tensor:
    """The same; 8 numbers are moved by themselves, 16 have an s, and d stands in the highest bits of four words."""
    words = _whole(blocks[:, 48:], 2)
    d = ((words >> 12) << torch.tensor([0, 4, 8, 12])).sum(1, keepdim=True)
    d = d.to(torch.int32).to(torch.int16).view(torch.float16).float()
    scales = 2 * (words[..., None] >> torch.tensor([0, 3, 6, 9]) & 7).flatten(1) + 1
    high = _parts(blocks[:, 32:48], 2, 4)
    moved = vectors("IQ1")[blocks[:, :32].long() | ((high & 7) << 8)] + DELTA * (1.0 - 2.0 * (high >> 3))[..., None]
    return ((d * scales)[..., None, None] * moved.view(-1, 16, 2, 8)).flatten(1)


def tq1_0(blocks: Tensor) -> Tensor:
    """d · (t - 1), with five digits t of base 3 in a byte, as a part of 256; in the last four bytes four."""
    parts = [(blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)]
    digits = [
        (part[:, None].long() * torch.tensor([3**power for power in range(count)])[:, None] & 255).flatten(1) * 3 >> 8
        for part, count in parts
    ]
    return (torch.cat(digits, 1) - 1.0) * half(blocks, 52)


def tq2_0(blocks: Tensor) -> Tensor:
    """d · (t - 1), with t of 2 bits: of 32 bytes the lowest of all, then the next, …"""
    halves = blocks[:, :64].reshape(-1, 2, 1, 32).long()
    return ((halves >> torch.tensor([0, 2, 4, 6])[:, None] & 3) - 1.0).flatten(1) * half(blocks, 64)


def q1_0(blocks: Tensor) -> Tensor:
    """±d, + where a bit is set."""
    return (_parts(blocks[:, 2:], 8, 1) * 2 - 1.0) * half(blocks)


def nvfp4(blocks: Tensor) -> Tensor:
    """s · v[q], with v in halves, and s of 16 numbers in 8 bits without a sign: 4 of exponent, 3 behind the point."""
    scale = blocks[:, :4].long()
    exponent, fraction = scale >> 3 & 15, (scale & 7).float()
    value = torch.where(exponent == 0, fraction / 512, torch.ldexp(1 + fraction / 8, exponent - 7))
    value = torch.where(scale == NO_NUMBER, 0.0, value / 2)
    packed = blocks[:, 4:].reshape(-1, 4, 8)
    numbers = torch.tensor(E2M1, dtype=torch.float32)[torch.cat([packed & 15, packed >> 4], -1).long()]
    return (value[..., None] * numbers).flatten(1)


DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ2_S": iq2_s,
    "IQ3_XXS": iq3_xxs,
    "IQ3_S": iq3_s,
    "IQ1_S": iq1_s,
    "IQ1_M": iq1_m,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "NVFP4": nvfp4,
    "Q1_0": q1_0,
}


def half(blocks: Tensor, at: int = 0) -> Tensor:
    """The float16 at a byte, [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _whole(stored: Tensor, size: int) -> Tensor:
    """Whole numbers of so many bytes each, the lowest first."""
    parts = stored.reshape(*stored.shape[:-1], -1, size).long()
    return (parts << torch.arange(0, 8 * size, 8)).sum(-1)


def _parts(stored: Tensor, count: int, bits: int) -> Tensor:
    """Of each byte so many parts, the lowest first."""
    mask = (1 << bits) - 1
    return (stored[..., None].long() >> torch.arange(0, count * bits, bits) & mask).flatten(1)


def _halves(stored: Tensor) -> Tensor:
    return _parts(stored, 2, 4)


def _signs(byte: Tensor) -> Tensor:
    """±1 for each bit, [..., 8]."""
    return 1.0 - 2.0 * (byte[..., None] >> torch.arange(8) & 1)


def _with_parity(seven: Tensor) -> Tensor:
    """Of seven bits eight, of which an even number is set."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return seven | ((parity ^ parity >> 1) & 1) << 7


def _even_signs(word: Tensor) -> Tensor:
    """±1 of four times seven bits of a word, [..., 4, 8]."""
    return _signs(_with_parity(word[..., None] >> torch.tensor([0, 7, 14, 21]) & 127))
