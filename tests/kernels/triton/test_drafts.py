"""Drafts made and verified by kernels, against those of the CPU's proposer and against plain Python."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.worker.speculative.ngram import NgramProposer  # noqa: E402
from actorserve.kernels.triton import drafts  # noqa: E402
from actorserve.kernels.triton.drafts import DraftState, Lookup, propose, verify  # noqa: E402
from actorserve.kernels.triton.step_inputs import RowState, StepInputs  # noqa: E402

LENGTH, ROOM = 90, 5


def column(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("bounds", [(1, 1), (2, 4), (3, 3), (1, 64)])
def test_drafts_are_those_of_the_cpu(bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts of few words, long and short, in circles; rows that are none, or without room, are left alone."""
    monkeypatch.setattr(drafts, "TILE", 16)  # so that there are several
    random = np.random.default_rng(bounds[1])
    known = [1, 2, 3, 17, 64, 80, 33, 40]
    tokens = random.integers(0, 3, (len(known), LENGTH)).astype(np.int32)
    tokens[6, :33] = np.arange(33)  # nothing came before
    tokens[7, :40] = np.arange(40) % 4
    rows, room = [7, -1, 5, 3, 0, 1, 2, 4, 6], [ROOM, ROOM, 3, ROOM, ROOM, ROOM, ROOM, 0, ROOM]
    starts = [(1 + ROOM) * index for index in range(len(rows) + 1)]
    inputs = StepInputs.make(len(rows), starts[-1], 1, DEVICE)
    inputs.ids.fill_(-7)
    for index, row in enumerate(rows):
        inputs.positions[starts[index]] = known[row] - 1 if row >= 0 else 10**9
    state = DraftState(torch.from_numpy(tokens.copy()).to(DEVICE), column([-7] * len(known)))
    propose(column(rows), column(starts), column(room), inputs, state, Lookup(*bounds, ROOM))
    proposer = NgramProposer(*bounds)
    some = 0
    for index, (row, count) in enumerate(zip(rows, room, strict=True)):
        own = inputs.ids[starts[index] : starts[index + 1]].tolist()
        if row < 0 or not count:
            assert own == [-7] * (1 + ROOM)
            continue
        found = proposer.find(tokens[row, : known[row]])
        line = tokens[row].tolist()
        wanted = [line[found + number % (known[row] - found)] for number in range(count)] if found else [0] * count
        assert own == [-7, *wanted, *[-7] * (ROOM - count)]
        assert int(state.drafted[row]) == (count if found else 0)
        some += bool(found)
    assert some >= 3 and int(state.drafted[4]) == -7


def test_which_tokens_count() -> None:
    """All drafts right, none, the first two, a row without any, one that found nothing, and nobody's tokens."""
    rows = [3, 3, 3, 3, 0, 0, 0, 5, 1, 1, 1, 1, 2, 2, -1, -1]
    starts = {3: 0, 0: 4, 5: 9, 1: 10, 2: 14}  # tokens 7 and 8 are of a chunk, whose last one draws
    at = [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 0, 0]
    first = {3: 20, 0: 7, 5: 40, 1: 0, 2: 11}
    drawn = [50, 51, 52, 53, 60, 61, 62, 70, 80, 81, 82, 83, 90, 91, 99, 99]
    ids = [1, 50, 51, 52, 1, 9, 61, 1, 1, 1, 1, 80, 81, 9, 1, 90]
    inputs = StepInputs.make(5, 16, 1, DEVICE)
    inputs.ids.copy_(column(ids))
    for row, start in starts.items():
        for number in range(16 - start):
            inputs.positions[start + number] = first[row] + number
    state = DraftState.make(6, LENGTH, DEVICE)
    state.drafted.copy_(column([2, 3, 0, 3, -7, 9]))
    rows_state = RowState(column([-7] * 6), column([-7] * 6), torch.zeros(6, 1, dtype=torch.int32, device=DEVICE))
    outcome = torch.full((20, 2), -7, dtype=torch.int32, device=DEVICE)
    values = torch.tensor(drawn, dtype=torch.int32, device=DEVICE)
    verify(column(rows), column(at), values, inputs, rows_state, state, outcome)
    assert {index: tuple(pair) for index, pair in enumerate(outcome.tolist()) if pair[0] != -7} == {
        0: (4, 3), 4: (1, 2), 7: (1, 0), 8: (3, 3), 12: (1, 0),
    }  # fmt: skip
    wanted = {3: [50, 51, 52, 53], 0: [60], 5: [70], 1: [80, 81, 82], 2: [90]}
    for row, tokens in wanted.items():
        begin = first[row] + 1
        line = state.tokens[row].tolist()
        assert line[begin : begin + len(tokens)] == tokens and sum(map(bool, line)) == len(tokens)
        assert int(rows_state.last[row]) == tokens[-1] and int(rows_state.drawn[row]) == first[row] + len(tokens)
    assert int(rows_state.last[4]) == int(rows_state.drawn[4]) == -7
