"""Cosines and sines of tokens at three positions, against tables of positions; in the interpreter where there is no
GPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.rope import Rope  # noqa: E402
from actorserve.actors.worker.models.rope import cosines_and_sines, inverse_frequencies  # noqa: E402
from actorserve.kernels.triton.rotary_kv import RotaryTables  # noqa: E402
from actorserve.kernels.triton.vision.axis_turns import AxisTurns, turn_by_axes  # noqa: E402

TOKENS, LENGTH = 9, 70_000
ONE_AFTER_THE_OTHER, IN_TURNS = [0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("axes", [ONE_AFTER_THE_OTHER, IN_TURNS, [*IN_TURNS, 0, 1, 2]])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_turns(axes: list[int], factor: float) -> None:
    """Of positions up to where tables end, with shifts below 0, too."""
    random = torch.Generator().manual_seed(len(axes))
    pairs, rope = len(axes), Rope()
    positions = torch.randint(100, LENGTH - 100, (TOKENS,), generator=random)
    shifts = torch.randint(-100, 100, (TOKENS, 3), generator=random)
    shifts[3:5] = 0
    frequencies = inverse_frequencies(rope, 2 * pairs, LENGTH)
    turns = AxisTurns(torch.tensor(axes, dtype=torch.int32, device=DEVICE), frequencies.to(DEVICE), factor)
    out = RotaryTables(*torch.full((2, TOKENS + 1, pairs), 7.0, device=DEVICE))
    part = RotaryTables(*(table[:TOKENS] for table in out))
    turn_by_axes(positions.to(DEVICE), shifts.to(DEVICE), turns, part)
    at = positions[:, None] + shifts[:, torch.tensor(axes)]
    for found, table in zip(part, cosines_and_sines(rope, 2 * pairs, LENGTH), strict=True):
        torch.testing.assert_close(found.cpu(), factor * table[at, torch.arange(pairs)], rtol=0, atol=3e-7)
    assert all(bool((table[TOKENS] == 7).all()) for table in out), "nothing behind them is written"


def test_what_does_not_fit() -> None:
    turns = AxisTurns(torch.zeros(4, dtype=torch.int32, device=DEVICE), torch.zeros(4, device=DEVICE))
    out = RotaryTables(*torch.zeros(2, 3, 4, device=DEVICE))
    positions, shifts = torch.zeros(3, dtype=torch.int64, device=DEVICE), torch.zeros(3, 3, device=DEVICE).long()
    with pytest.raises(ValueError, match="positions"):
        turn_by_axes(positions[:2], shifts, turns, out)
    with pytest.raises(ValueError, match="shifts"):
        turn_by_axes(positions, shifts[:, :2], turns, out)
    with pytest.raises(ValueError, match="frequencies"):
        turn_by_axes(positions, shifts, turns._replace(frequencies=torch.zeros(3, device=DEVICE)), out)
