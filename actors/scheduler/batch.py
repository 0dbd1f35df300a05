"""The running batch: the hot state of each row, in arrays, so that a step costs a few vector operations.

A row holds one running sequence. By position of its token log (V = virtual: counts tokens still being sampled):
  [0, confirmed)          computed by steps that have come back
  [confirmed, computed)   being computed by steps in flight
  [computed, known)       to be planned; known is V
A row whose computed + count reaches known samples one token, and known grows by one.
Where it has room for drafts, both grow by that as well, as if all were accepted (see policy/speculation.py).
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.table.table import generation_of

from .sequence import Sequence

NEVER = 1 << 62  # more blocks than any row has

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RunningBatch:
    """Rows 0 … size-1. `ticket` is 0 for an empty row and different for every sequence that ever had the row."""

    def __init__(self, size: int) -> None:
        def zeros() -> Ints:
            return np.zeros(size, np.int64)

        self.size = size
        self.ticket, self.slot, self.generation = zeros(), zeros(), zeros()
        self.computed, self.known, self.confirmed = zeros(), zeros(), zeros()
        self.prompt, self.generated, self.total = zeros(), zeros(), zeros()
        self.in_flight = zeros()  # tokens being sampled
        self.capacity = zeros()  # tokens that its blocks hold
        self.registered = (
            zeros()
        )  # its first blocks that the prefix cache has been offered; NEVER: it gets none of them
        self.ignore_eos: Bools = np.zeros(size, np.bool_)
        self.has_stop_ids: Bools = np.zeros(size, np.bool_)
        self.plain: Bools = np.zeros(size, np.bool_)  # its tokens may be drafted
        self.told: Bools = np.zeros(size, np.bool_)  # the worker knows of it: not yet where it was taken over
        self.sequences: list[Sequence | None] = [None] * size
        self._free = list(range(size - 1, -1, -1))
        self._tickets = 0

    def __len__(self) -> int:
        return self.size - len(self._free)

    @property
    def full(self) -> bool:
        return not self._free

    def running(self) -> list[Sequence]:
        """The sequences in rows, in row order."""
        return [sequence for sequence in self.sequences if sequence is not None]

    def at(self, row: int) -> Sequence:
        """The sequence in a row that is not empty."""
        sequence = self.sequences[row]
        assert sequence is not None, f"row {row} is empty"
        return sequence

    def refs(self, rows: Ints) -> list[int]:
        """The names of what is in these rows (as shm.table_layout.make_ref has it), none of which is empty."""
        refs: list[int] = (self.generation[rows] << 32 | self.slot[rows]).tolist()
        return refs

    def place(self, sequence: Sequence, computed: int, capacity: int, registered: int) -> int:
        """Give a sequence a free row; its first `computed` tokens are in its blocks already."""
        row = self._free.pop()
        self._tickets += 1
        self.ticket[row] = self._tickets
        self.slot[row], self.generation[row] = sequence.slot, generation_of(sequence.ref)
        self.computed[row] = self.confirmed[row] = computed
        self.known[row], self.prompt[row] = sequence.known, sequence.prompt_tokens
        self.generated[row], self.total[row] = sequence.generated, sequence.total
        self.in_flight[row] = 0
        self.capacity[row], self.registered[row] = capacity, registered
        self.ignore_eos[row], self.has_stop_ids[row] = sequence.ignore_eos, bool(sequence.stop_ids)
        self.plain[row] = sequence.sampling.is_plain()
        self.told[row] = True
        self.sequences[row] = sequence
        sequence.row = row
        return row

    def remove(self, sequence: Sequence) -> None:
        """Free the sequence's row and hand its progress back to the sequence."""
        row = sequence.row
        assert row is not None
        sequence.generated, sequence.in_flight = int(self.generated[row]), int(self.in_flight[row])
        sequence.row = None
        self.sequences[row] = None
        self.ticket[row] = 0
        self._free.append(row)

    def due(self) -> tuple[Ints, Ints]:
        """(rows that decode: one token to compute, rows in prefill: several). Rows at their length limit are done."""
        pending = self.known - self.computed
        live = (self.ticket > 0) & (self.known < self.total) & self.told
        return np.flatnonzero(live & (pending == 1)), np.flatnonzero(live & (pending > 1))

    def advance(self, rows: Ints, counts: Ints, room: Ints) -> Bools:
        """Account for a planned step; of its `counts`, `room` is for drafts. Returns which rows sample."""
        self.computed[rows] += counts
        self.known[rows] += room
        samples: Bools = self.computed[rows] == self.known[rows]
        self.known[rows] += samples
        self.in_flight[rows] += samples + room
        return samples

    def still(self, rows: Ints, tickets: Ints) -> Bools:
        """Which of these rows have the same sequence as when they had these tickets."""
        still: Bools = self.ticket[rows] == tickets
        return still

    def confirm(self, rows: Ints, counts: Ints, missed: Ints) -> None:
        """These rows' part of a step has come back; of their `counts`, `missed` were room for drafts that came to
        nothing."""
        self.confirmed[rows] += counts - missed
        self.computed[rows] -= missed
        self.known[rows] -= missed
        self.in_flight[rows] -= missed

    def withhold(self) -> None:
        """The prefix cache is offered no block of those that run now."""
        self.registered[self.ticket > 0] = NEVER

    def check_integrity(self) -> None:
        """AssertionError says what does not hold."""
        for row, sequence in enumerate(self.sequences):
            if sequence is None:
                assert self.ticket[row] == 0, f"row {row} has a ticket and no sequence"
                continue
            assert sequence.row == row and self.ticket[row] > 0
            known = self.prompt[row] + self.generated[row] + self.in_flight[row]
            assert self.known[row] == known, f"row {row}: {self.known[row]} tokens known, {known} accounted for"
            assert 0 <= self.confirmed[row] <= self.computed[row] <= self.known[row] <= self.total[row]
            assert self.computed[row] <= self.capacity[row], f"row {row} computes beyond its blocks"
        assert len(set(self._free)) == len(self._free) == sum(s is None for s in self.sequences)
