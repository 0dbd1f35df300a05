"""Units of shared memory, and names of slots' uses."""

from __future__ import annotations

import pytest

from actorserve.shm.layout import CACHE_LINE, LOW32, check_place, generation_of, make_ref, slot_of, whole


@pytest.mark.parametrize(("size", "units"), [(0, 0), (1, 1), (64, 1), (65, 2)])
def test_whole_units(size: int, units: int) -> None:
    assert whole(size, CACHE_LINE) == units * CACHE_LINE


@pytest.mark.parametrize(("generation", "slot"), [(1, 0), (7, LOW32), (LOW32 >> 1, 3)])
def test_a_ref_has_two_halves(generation: int, slot: int) -> None:
    ref = make_ref(generation, slot)
    assert (generation_of(ref), slot_of(ref)) == (generation, slot) and ref < 1 << 63


def test_where_a_structure_may_lie() -> None:
    check_place(4096, 4096 - 128, 128, "board")
    for offset in (-64, 8, 4096 - 64, 4096):
        with pytest.raises(ValueError, match=f"no board can lie at {offset} of a segment of 4096"):
            check_place(4096, offset, 128, "board")
