"""Tables of the angles by which positions turn queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...model.rope import Rope


def cosines_and_sines(rope: Rope, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Those of each position's angles, both float32 [length, numbers that turn / 2]."""
    frequencies = inverse_frequencies(rope, rope.rotary_dim or head_dim, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if rope.long is None else (cos * rope.long.attention_factor, sin * rope.long.attention_factor)


def inverse_frequencies(rope: Rope, dim: int, length: int) -> Tensor:
    """The angle of one position for each pair of `dim` numbers, for texts of up to `length` tokens.

    All kinds but the default one stretch it to longer texts.
    """
    powers = rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.long is not None:
        return 1.0 / (torch.tensor(rope.long.factors(length)) * powers)
    plain = 1.0 / powers
    if rope.kind == "default":
        return plain
    stretched = plain / rope.numbers["factor"]
    if rope.kind == "linear":
        return stretched
    # llama3: angles that turn often within the original length stay, those that turn seldom are stretched
    low, high = rope.numbers["low_freq_factor"], rope.numbers["high_freq_factor"]
    turns = rope.numbers["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * stretched + share * plain
