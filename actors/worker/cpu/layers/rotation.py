"""Tables of what queries and keys are multiplied with at each position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ....model.rope import Growth, Rope
from ...models.rope import cosines_and_sines, growths


def growth_table(growth: Growth, length: int) -> Tensor:
    """What queries at each position are multiplied with, [length, 1, 1]."""
    return growths(growth, length)[:, None, None]


def rotation_table(rope: Rope, head_dim: int, length: int) -> Tensor:
    """cos + i·sin of each position's angles, complex64 [length, head_dim / 2]; 1 for numbers that do not turn."""
    turning = torch.complex(*cosines_and_sines(rope, head_dim, length))
    return F.pad(turning, (0, head_dim // 2 - turning.shape[1]), value=1)
