"""A step as it was planned, and the same one again: of rows that decode step after step the plan is made once.

A plan is made again as long as no row has got or lost its sequence, nobody could take a row, every row has as much
room for drafts, and all have blocks for it and are away from their limits; how often that may be is known beforehand.
Measured (`tools/bench/scheduler`, one row, µs of CPU a step with all that comes back of it): planned anew 108, made
again 27; with the caches taken in between by a worker 168 and 57.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..protocol.step import BLOCK_BYTES, MOST_NEW_BYTES, NewRow
from .batch import COMPUTED, IN_FLIGHT, KNOWN, Bools, Ints, RunningBatch
from .memory.snapshots import Save
from .policy.pictures import Look

OF_ANY_ROWS = -1


@dataclass
class PlannedStep:
    """A step that was planned: what the worker is told and what is needed to apply its results."""

    rows: Ints
    counts: Ints
    tokens: int  # to compute, in all
    num_draft_tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of `counts`, for drafts
    drafts_on: bool = False  # whether rows might have any
    samples: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    tickets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    refs: list[int] = field(default_factory=list)  # of the rows that sample
    new: list[NewRow] = field(default_factory=list)
    new_blocks: list[tuple[int, int, int]] = field(default_factory=list)  # (row, index, block)
    saves: list[Save] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)  # parts of pictures' embeddings, as Step has them
    looking: list[tuple[int, int]] = field(default_factory=list)  # rows and tickets of those, who may compute no token
    encoded: int = 0  # placeholders of pictures whose embeddings it makes first
    decoding: int = 0  # rows that compute one token beside their drafts
    version: int = OF_ANY_ROWS  # of the batch, all of whose rows it is of; they decode, with `room` for drafts each
    room: int = 0


class NewRows:
    """Those that a step tells the worker of, which is one message: what does not fit into it is for the next one."""

    def __init__(self, told: int = 0) -> None:
        """`told`: bytes of what it tells in front of them."""
        self.rows: list[NewRow] = []
        self._bytes = told

    @property
    def is_full(self) -> bool:
        """Whether it tells of no more: one that is longer than all that a step may tell is still told of."""
        return self._bytes >= MOST_NEW_BYTES

    def add(self, row: NewRow, blocks: int = 0) -> None:
        """With so many blocks of windows, which are told of one by one."""
        self.rows.append(row)
        self._bytes += row.size + blocks * BLOCK_BYTES


class Untold:
    """Rows and blocks that were given out by plans which came to no step: the worker hears of them with the next."""

    def __init__(self, batch: RunningBatch) -> None:
        self._batch = batch
        self._rows: list[tuple[NewRow, int]] = []  # each with the ticket of the row that it is of
        self._blocks: list[tuple[tuple[int, int, int], int]] = []

    @property
    def size(self) -> int:
        """Bytes of what still holds."""
        return sum(row.size for row in self._still()) + len(self._blocks) * BLOCK_BYTES

    def _still(self) -> list[NewRow]:
        """The rows that have the same sequences."""
        return [new for new, was in self._rows if self._batch.ticket[new.row] == was]

    def tell(self, step: PlannedStep) -> None:
        """Put what still holds in front of what this step tells."""
        if self._rows or self._blocks:
            step.new = self._still() + step.new
            kept = [block for block, was in self._blocks if self._batch.ticket[block[0]] == was]
            step.new_blocks = kept + step.new_blocks
            self._rows, self._blocks = [], []

    def keep(self, step: PlannedStep) -> None:
        """The worker is not told of this step. What has lost its row in this plan needs no word."""
        ticket = self._batch.ticket
        self._rows = [(new, int(ticket[new.row])) for new in step.new if ticket[new.row]]
        self._blocks = [(block, int(ticket[block[0]])) for block in step.new_blocks if ticket[block[0]]]


class SteadyPlan:
    """A step of all rows of a batch that can be planned again as it is."""

    def __init__(self, batch: RunningBatch, step: PlannedStep, room: int) -> None:
        self.step = replace(step, new=[], new_blocks=[], looks=[], looking=[], version=batch.version, room=room)
        self._batch, self._span = batch, batch.span(step.rows)
        self._advance = np.zeros(batch.progress.shape[1], np.int64)
        self._advance[[COMPUTED, KNOWN, IN_FLIGHT]] = self._each = 1 + room
        blocks = batch.num_block_tokens[step.rows] - batch.num_computed_tokens[step.rows]
        limits = batch.max_num_tokens[step.rows] - batch.num_known_tokens[step.rows] - room  # see policy/speculation.py
        self._slack = int(min(blocks.min(), limits.min()))  # tokens by which each of the rows may go on, at least

    @classmethod
    def of(cls, batch: RunningBatch, step: PlannedStep, room: int) -> SteadyPlan | None:
        """For a step in which every row decodes, with so much room for drafts; None if it cannot come again."""
        if (step.num_draft_tokens != room).any():
            return None
        found = cls(batch, step, room)
        return found if found._slack >= found._each else None

    def goes_on(self, room: int) -> bool:
        """Whether the next step is the same."""
        return self._slack >= self._each == 1 + room and self.step.version == self._batch.version

    def again(self) -> PlannedStep:
        """It is planned again."""
        self._batch.progress[self._span] += self._advance
        self._slack -= self._each
        return self.step

    def came_back(self, step: PlannedStep, missed: int) -> None:
        """A step with room for drafts has come back: each row drew at least `missed` tokens fewer than it had room."""
        if step.rows is self.step.rows:
            self._slack += missed
