"""Cells of the picture are what a plain loop over all blocks says, for any number of blocks."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.frontend.observability.dashboard import CELLS, MOST_IN_A_BYTE, cells

SIZES = (1, 7, CELLS - 1, CELLS, CELLS + 1, 2 * CELLS - 1, 5000, MOST_IN_A_BYTE * CELLS, MOST_IN_A_BYTE * CELLS + 1)


@pytest.mark.parametrize("blocks", SIZES)
def test_they_are_what_a_loop_says(blocks: int) -> None:
    rng = random.Random(blocks)
    flags = b"".join(rng.choice([b"\x00", b"\x01", b"\x02"]) * rng.randrange(1, 40) for _ in range(blocks))[:blocks]
    size = -(-blocks // CELLS)
    parts = [flags[at : at + size] for at in range(0, blocks, size)]
    counts = [sum(flag != 0 for flag in part) for part in parts]
    expected = [-(-15 * count // len(part)) for count, part in zip(counts, parts, strict=True)]
    assert [int(digit, 16) for digit in cells(flags)] == expected
