"""The request table as numpy arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from actorserve.shm.table import layout
from actorserve.shm.table.table import generation_of

from .table_maker import MAX_TOKENS, SLOTS, new_table


def test_append_for_many_equals_append_one_by_one() -> None:
    scalar, vector = new_table(64), new_table(64)
    arrays = vector.as_numpy()
    draws = np.random.default_rng(1)
    refs = []
    for slot in range(SLOTS):
        for table in (scalar, vector):
            for _ in range(slot + 1):
                ref = table.open_slot(slot, b"p", 5)
            table.write_prompt(ref, list(range(slot)), b"", 30)
        refs.append(ref)
    generations = np.array([generation_of(ref) for ref in refs])
    counts = np.zeros(SLOTS, np.int64)
    for _ in range(30):
        slots = draws.permutation(SLOTS)[: draws.integers(1, SLOTS + 1)]
        tokens = draws.integers(-(2**31), 2**31, len(slots)).astype(np.int32)
        arrays.append_tokens(slots, slots + counts[slots], tokens, generations[slots], counts[slots] + 1)
        counts[slots] += 1
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            scalar.append(refs[slot], [token])
    assert bytes(scalar.segment.map) == bytes(vector.segment.map)


def test_arrays_are_views_of_the_table() -> None:
    table = new_table(64)
    arrays = table.as_numpy()
    assert arrays.tokens.shape == (SLOTS, MAX_TOKENS) and arrays.tokens.dtype == np.int32
    assert arrays.control.shape == (SLOTS, 32) and arrays.control.dtype == np.uint64
    ref = table.open_slot(4, b"", 77)
    table.write_prompt(ref, [1, 2, 3], b"", 5)
    assert arrays.tokens[4, :3].tolist() == [1, 2, 3]
    assert arrays.control[4, layout.GENERATION] == 1 and arrays.control[4, layout.ARRIVAL] == 77
    assert arrays.control[:, layout.TOKENS].ctypes.data % 8 == 0


def test_arrays_outlive_the_segment_object() -> None:
    table = new_table()
    arrays = table.as_numpy()
    table.segment.close()
    del table
    arrays.tokens[:] = 1
    assert arrays.tokens.sum() == SLOTS * MAX_TOKENS


def test_the_table_needs_no_numpy() -> None:
    modules = ", ".join(f"actorserve.shm.{name}" for name in ("table.table", "rings.mailbox", "board.board"))
    code = f"import sys, {modules}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
