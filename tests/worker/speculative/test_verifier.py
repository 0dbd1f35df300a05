"""How long a row has drafts, by how many of them were right."""

from __future__ import annotations

import numpy as np

from actorserve.actors.worker.speculative.verifier import FIRST_PAUSE, DraftBatch, DraftVerifier, Ints, Tokens

from .work import work_of


class Never:
    """Its drafts are wrong."""

    follows = False

    def place(self, row: int, computed: int) -> None:
        pass

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        return work.room


def test_a_row_whose_drafts_fail_has_none_for_a_while() -> None:
    verifier = DraftVerifier(Never(), 2, 64)
    row, one = np.array([0]), np.array([1])
    verifier.place(0, np.arange(3), 0)
    tried = []
    for _ in range(1000):
        drafted = verifier.draft(work_of(row, one, one, np.array([4])), 0.5)
        tried.append(bool(drafted[0]))
        if drafted[0]:
            assert verifier.accepted(row, np.array([2]), drafted, np.full(5, 77, np.int32)).tolist() == [0]
    pauses = np.diff(np.flatnonzero(tried))
    assert sum(tried) < 10 and pauses.max() > 4 * FIRST_PAUSE, "each failure doubles the while"
    last = int(np.flatnonzero(tried)[-1])
    verifier.place(0, np.arange(3), 0)
    assert last and verifier.draft(work_of(row, one, one, np.array([4])), 0.5).tolist() == [4]


def test_a_row_whose_drafts_are_right_goes_on() -> None:
    verifier = DraftVerifier(Never(), 1, 64)
    row, one = np.array([0]), np.array([1])
    verifier.place(0, np.arange(3), 0)
    for _ in range(300):
        drafted = verifier.draft(work_of(row, one, one, np.array([4])), 0.5)
        assert drafted.tolist() == [4]
        verifier.tokens[0, 2:6] = [5, 6, 7, 8]
        assert verifier.accepted(row, np.array([2]), drafted, np.array([5, 6, 7, 9, 1], np.int32)).tolist() == [3]
