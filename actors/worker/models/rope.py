"""Tables of what positions make of queries and keys: the angles by which they turn, and how queries grow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...model.rope import Growth, Rope


def cosines_and_sines(rope: Rope, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Those of each position's angles, both float32 [length, numbers that turn / 2]."""
    frequencies = inverse_frequencies(rope, rope.rotary_dim or head_dim, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if rope.attention_factor == 1 else (cos * rope.attention_factor, sin * rope.attention_factor)


def growths(growth: Growth, length: int) -> Tensor:
    """What queries at each position are multiplied with, float32 [length]."""
    steps = torch.floor(torch.arange(growth.first, length + growth.first, dtype=torch.float32) / growth.floor)
    return torch.log1p(steps) * growth.scale + 1.0


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
    if rope.kind == "yarn":
        return _yarn(rope, dim, plain, stretched)
    # llama3: angles that turn often within the original length stay, those that turn seldom are stretched
    low, high = rope.numbers["low_freq_factor"], rope.numbers["high_freq_factor"]
    turns = rope.numbers["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = (turns > low).float() if low == high else ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * stretched + share * plain


def _yarn(rope: Rope, dim: int, plain: Tensor, stretched: Tensor) -> Tensor:
    """Pairs that turn more than beta_fast times within the original length stay, those that turn less than beta_slow
    times are stretched, and what lies between is mixed by the pair's number (Peng et al. 2023, YaRN)."""

    def pair(turns: float) -> float:
        """The number, not whole, of the pair that turns so often."""
        length = rope.numbers["original_max_position_embeddings"]
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.numbers["beta_fast"]), pair(rope.numbers["beta_slow"])
    if rope.numbers["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    share = ((torch.arange(dim // 2) - low) / (high - low or 0.001)).clamp(0, 1)
    return share * stretched + (1 - share) * plain
