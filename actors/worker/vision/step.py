"""What a step's tokens have of pictures, beside their ids and positions. Knows torch alone."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Run(NamedTuple):
    """Tokens of a picture in a row's part of the step, which see one another: positions [start, end)."""

    span: int  # which row of the step
    start: int
    end: int


class VisionStep(NamedTuple):
    """What a step's tokens have beside their ids and positions."""

    turns: Tensor | None = None  # [tokens] or, where some have three, [3, tokens]
    at: Tensor | None = None  # where embeddings go, in the flat batch
    rows: Tensor | None = None
    deepstack: tuple[Tensor, ...] = ()
    runs: tuple[Run, ...] = ()
