"""The running batch: the hot state of each row, in arrays, so that a step costs a few vector operations.

A row holds one running sequence. By position of its token log (V = virtual: counts tokens still being sampled):
  [0, num_confirmed_tokens)          computed by steps that have come back
  [num_confirmed_tokens, num_computed_tokens)   being computed by steps in flight
  [num_computed_tokens, num_known_tokens)       to be planned; num_known_tokens is V
A row whose num_computed_tokens + count reaches num_known_tokens samples one, and that grows by it.
Where it has room for drafts, both grow by that as well, as if all were accepted (see policy/speculation.py).
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.table.table import generation_of

from .sequence import Sequence

NEVER = 1 << 62  # more blocks than any row has
COMPUTED, KNOWN, CONFIRMED, GENERATED, IN_FLIGHT = range(5)  # what a step changes of a row, in RunningBatch.progress

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RunningBatch:
    """Rows 0 … size-1. `ticket` is 0 for an empty row and different for every sequence that ever had the row."""

    def __init__(self, size: int) -> None:
        def zeros() -> Ints:
            return np.zeros(size, np.int64)

        self.size = size
        self.version = 0  # another one whenever a row gets or loses its sequence
        self.ticket, self.slot, self.generation = zeros(), zeros(), zeros()
        self.progress = np.zeros((size, 5), np.int64)  # the next five: a row's lie together
        self.num_computed_tokens: Ints = self.progress[:, COMPUTED]
        self.num_known_tokens: Ints = self.progress[:, KNOWN]
        self.num_confirmed_tokens: Ints = self.progress[:, CONFIRMED]
        self.num_generated_tokens: Ints = self.progress[:, GENERATED]
        self.num_in_flight_tokens: Ints = self.progress[:, IN_FLIGHT]  # tokens being sampled
        self.num_prompt_tokens, self.max_num_tokens = zeros(), zeros()
        self.num_logged_tokens = zeros()  # that its log had when it took the row: the worker reads them there
        self.num_block_tokens = zeros()  # tokens that its blocks hold
        # its first blocks that the prefix cache has been offered; NEVER: it gets none of them
        self.num_offered_blocks = zeros()
        self.ignore_eos: Bools = np.zeros(size, np.bool_)
        self.has_stop_ids: Bools = np.zeros(size, np.bool_)
        self.may_be_drafted: Bools = np.zeros(size, np.bool_)  # its tokens may be drafted
        self.is_constrained: Bools = np.zeros(size, np.bool_)  # it keeps to a grammar
        self.is_announced: Bools = np.zeros(size, np.bool_)  # the worker knows of it: not yet where it was taken over
        self.sequences: list[Sequence | None] = [None] * size
        self._free = list(range(size - 1, -1, -1))
        self._tickets = 0

    def __len__(self) -> int:
        return self.size - len(self._free)

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def all_constrained(self) -> bool:
        """Does each row that is taken keep to a grammar?"""
        return bool(self.is_constrained[self.ticket > 0].all())

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
        self.version += 1
        self._tickets += 1
        self.ticket[row] = self._tickets
        self.slot[row], self.generation[row] = sequence.slot, generation_of(sequence.ref)
        self.num_computed_tokens[row] = self.num_confirmed_tokens[row] = computed
        self.num_known_tokens[row], self.num_prompt_tokens[row] = sequence.num_tokens, sequence.num_prompt_tokens
        self.num_generated_tokens[row], self.max_num_tokens[row] = (
            sequence.num_generated_tokens,
            sequence.max_num_tokens,
        )
        self.num_in_flight_tokens[row] = 0
        self.num_logged_tokens[row] = sequence.num_tokens
        self.num_block_tokens[row], self.num_offered_blocks[row] = capacity, registered
        self.ignore_eos[row], self.has_stop_ids[row] = sequence.ignore_eos, bool(sequence.stop_ids)
        self.may_be_drafted[row] = sequence.sampling.is_plain()
        self.is_constrained[row] = sequence.constrained
        self.is_announced[row] = True
        self.sequences[row] = sequence
        sequence.row = row
        return row

    def remove(self, sequence: Sequence) -> None:
        """Free the sequence's row and hand its progress back to the sequence."""
        row = sequence.row
        assert row is not None
        self.version += 1
        sequence.num_generated_tokens, sequence.num_in_flight_tokens = (
            int(self.num_generated_tokens[row]),
            int(self.num_in_flight_tokens[row]),
        )
        sequence.is_read = self.is_read(row)
        sequence.row = None
        self.sequences[row] = None
        self.ticket[row] = 0
        self._free.append(row)

    def is_read(self, row: int) -> bool:
        """Whether steps that are under way may read the slot of what is in this row."""
        return bool(self.num_confirmed_tokens[row] < self.num_logged_tokens[row])

    def span(self, rows: Ints) -> Ints | slice:
        """What takes these rows out of an array at the least cost; they rise."""
        first, last = int(rows[0]), int(rows[-1])
        return slice(first, last + 1) if last - first + 1 == len(rows) else rows

    def due(self) -> tuple[Ints, Ints]:
        """(rows that decode: one token to compute, rows in prefill: several). Rows at their length limit are done."""
        pending = self.num_known_tokens - self.num_computed_tokens
        live = (self.ticket > 0) & (self.num_known_tokens < self.max_num_tokens) & self.is_announced
        return np.flatnonzero(live & (pending == 1)), np.flatnonzero(live & (pending > 1))

    def advance(self, rows: Ints, counts: Ints, num_draft_tokens: Ints) -> Bools:
        """Account for a planned step; of its `counts`, `num_draft_tokens` are for drafts. Returns which rows sample."""
        self.num_computed_tokens[rows] += counts
        self.num_known_tokens[rows] += num_draft_tokens
        samples: Bools = self.num_computed_tokens[rows] == self.num_known_tokens[rows]
        self.num_known_tokens[rows] += samples
        self.num_in_flight_tokens[rows] += samples + num_draft_tokens
        return samples

    def still(self, rows: Ints, tickets: Ints) -> Bools:
        """Which of these rows have the same sequence as when they had these tickets."""
        still: Bools = self.ticket[rows] == tickets
        return still

    def confirm(self, rows: Ints, counts: Ints, missed: Ints) -> None:
        """These rows' part of a step has come back; of their `counts`, `missed` were room for drafts that came to
        nothing."""
        self.num_confirmed_tokens[rows] += counts - missed
        self.num_computed_tokens[rows] -= missed
        self.num_known_tokens[rows] -= missed
        self.num_in_flight_tokens[rows] -= missed

    def withhold(self) -> None:
        """The prefix cache is offered no block of those that run now."""
        self.version += 1
        self.num_offered_blocks[self.ticket > 0] = NEVER

    def check_integrity(self) -> None:
        """AssertionError says what does not hold."""
        for row, sequence in enumerate(self.sequences):
            if sequence is None:
                assert self.ticket[row] == 0, f"row {row} has a ticket and no sequence"
                continue
            assert sequence.row == row and self.ticket[row] > 0
            known = self.num_prompt_tokens[row] + self.num_generated_tokens[row] + self.num_in_flight_tokens[row]
            assert self.num_known_tokens[row] == known, (
                f"row {row}: {self.num_known_tokens[row]} tokens known, {known} accounted for"
            )
            assert (
                0
                <= self.num_confirmed_tokens[row]
                <= self.num_computed_tokens[row]
                <= self.num_known_tokens[row]
                <= self.max_num_tokens[row]
            )
            assert self.num_computed_tokens[row] <= self.num_block_tokens[row], f"row {row} computes beyond its blocks"
        assert len(set(self._free)) == len(self._free) == sum(s is None for s in self.sequences)
