"""A step's inputs against plain Python: decoding, chunks, mixed, padded rows, tables of many entries."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.step_inputs import RowState, StepInputs, change_rows, keep_tokens, make_inputs  # noqa: E402
from tests.kernels.reference.step_inputs import reference_inputs  # noqa: E402

ROWS, WIDTH = 9, 40
POISON = -77


def make_state(random: np.random.Generator) -> RowState:
    table = torch.from_numpy(random.permutation(ROWS * WIDTH).reshape(ROWS, WIDTH).astype(np.int32))
    last = torch.from_numpy(random.integers(1, 1000, ROWS))
    return RowState(last.to(DEVICE), torch.full((ROWS,), POISON, device=DEVICE), table.to(DEVICE))


def column(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("block_size", [8, 32])
@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([3], [1]),
        ([8, 0, 5, -1, -1], [1, 1, 1, 1, 1]),
        ([2, 7], [300, 17]),
        ([4, 1, 6, -1, 0], [1, 1, 290, 3, 40]),
    ],
)
def test_inputs(rows: list[int], counts: list[int], block_size: int) -> None:
    random = np.random.default_rng(len(rows) + block_size)
    state = make_state(random)
    firsts = [
        int(random.integers(0, WIDTH * block_size - count)) if row >= 0 else 5
        for row, count in zip(rows, counts, strict=True)
    ]
    given = [int(value) for value in random.integers(-3, 1000, sum(counts))]
    out = StepInputs.make(len(rows) + 2, sum(counts) + 3, WIDTH, DEVICE)
    for values in out:
        values.fill_(POISON)
    starts = column([0, *np.cumsum(counts).tolist()])
    part = out.part(len(rows), sum(counts))
    make_inputs(column(rows), starts, column(firsts), state, part, block_size, max(counts), column(given))
    ids, positions, slots, lengths, blocks = reference_inputs(rows, counts, firsts, state, block_size, given)
    assert (part.ids.tolist(), part.positions.tolist(), part.slots.tolist()) == (ids, positions, slots)
    assert part.lengths.tolist() == lengths
    assert [entries[: len(wanted)] for entries, wanted in zip(part.blocks.tolist(), blocks, strict=True)] == blocks
    assert all((values[len(own) :] == POISON).all() for values, own in zip(out, part, strict=True))
    drawn = {row: length for row, length in zip(rows, lengths, strict=True) if row >= 0}
    assert state.drawn.tolist() == [drawn.get(row, POISON) for row in range(ROWS)]


def test_without_given_tokens_the_last_ones_are_taken() -> None:
    state = make_state(np.random.default_rng(1))
    out = StepInputs.make(2, 2, WIDTH, DEVICE)
    make_inputs(column([5, 2]), column([0, 1, 2]), column([9, 0]), state, out, 16, 1)
    assert out.ids.tolist() == state.last[[5, 2]].tolist()


def test_tokens_are_kept_by_their_rows_alone() -> None:
    last = torch.arange(600, device=DEVICE)
    rows = torch.full((300,), -1, device=DEVICE)
    rows[[0, 7, 299]] = column([599, 0, 44])
    keep_tokens(rows, torch.arange(1000, 1300, dtype=torch.int32, device=DEVICE), last)
    wanted = torch.arange(600)
    wanted[[599, 0, 44]] = torch.tensor([1000, 1007, 1299])
    assert torch.equal(last.cpu(), wanted)


def test_what_does_not_fit_is_refused() -> None:
    state, out = make_state(np.random.default_rng(1)), StepInputs.make(1, 1, WIDTH, DEVICE)
    with pytest.raises(ValueError, match="starts"):
        make_inputs(column([1]), column([0]), column([0]), state, out, 16, 1)
    with pytest.raises(ValueError, match="blocks"):
        make_inputs(column([1]), column([0, 1]), column([0]), state, StepInputs.make(1, 1, 3, DEVICE), 16, 1)
    with pytest.raises(ValueError, match="given"):
        make_inputs(column([1]), column([0, 1]), column([0]), state, out, 16, 1, column([1, 2]))


def test_rows_that_change() -> None:
    """Entries of the table, more than one program's, and rows with all that is asked of them."""
    random = np.random.default_rng(1)
    state, rows = make_state(random), [4, 0, 7]
    kinds = (torch.float32, torch.int64, torch.float64, torch.float32, torch.float32, torch.int64)
    parameters = [torch.full((ROWS,), POISON, dtype=kind, device=DEVICE) for kind in kinds]
    places = random.permutation(ROWS * WIDTH)[:300]
    blocks = random.integers(0, 1 << 31, 300)
    wanted = state.table.flatten().cpu().numpy().copy()
    wanted[places] = blocks
    values = [0.3, 1 << 40, 0.9, 0.1, 1.7, -(1 << 63)]
    numbers = [np.array([value] * 3, np.float64).view(np.int64) if isinstance(value, float) else np.array([value] * 3)
               for value in values]  # fmt: skip
    columns = [places, blocks, np.array(rows), np.array([5, 6, 7]), np.array([8, 9, 10]), *numbers]
    packed = torch.from_numpy(np.concatenate(columns)).to(DEVICE)
    before = state.last.clone()
    change_rows(packed, 300, state, parameters)
    assert state.table.flatten().tolist() == wanted.tolist()
    assert state.last[rows].tolist() == [5, 6, 7] and state.drawn[rows].tolist() == [8, 9, 10]
    others = [row for row in range(ROWS) if row not in rows]
    assert torch.equal(state.last[others], before[others]) and (state.drawn[others] == POISON).all()
    for values_of, kind, value in zip(parameters, kinds, values, strict=True):
        assert values_of[rows].tolist() == torch.tensor([value] * 3, dtype=kind).tolist()
        assert (values_of[others] == POISON).all()
    with pytest.raises(ValueError, match="whole rows"):
        change_rows(packed[:-1], 300, state, parameters)
