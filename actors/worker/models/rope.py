"""Tables of the angles by which positions turn queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...model.rope import Rope


def cosines_and_sines(rope: Rope, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Those of each position's angles, both float32 [length, head_dim / 2]."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return angles.cos(), angles.sin()


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """The angle of one position for each pair of numbers; `linear` and `llama3` stretch it to longer texts."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
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
