"""Drafts on a GPU: found in what a row has said before, and verified, by the device (kernels/triton/drafts.py).

A row with room for k drafts has 1 + k tokens in a step, as a chunk of a prompt has; of each, the next one is drawn. How
many of them count, the device alone knows while the next steps are started. So the host counts as the scheduler does
(scheduler/policy/speculation.py), as if all drafts of the steps in flight were right: its `computed` and `known` of a
row are too large by the same number, until the step is finished. Where a decoding row's tokens stand, the device's
state says; nothing that needs the exact number on the host is asked of rows with drafts:
    rows that want their logits changed, or logprobs, have none.
With several workers a row's drafts are not given up where few count, since all would have to do so at the same step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.drafts import DraftState, Lookup, propose, verify
from actorserve.kernels.triton.sampling import RowParameters, sample
from actorserve.kernels.triton.step_inputs import StepInputs
from actorserve.shm.table.table import slot_of

from ....protocol.step import NewRow, Step
from ...speculative.verifier import DraftBatch, DraftOutcome, DraftVerifier
from ...transfer import to_device
from ..rows import Ints
from ..runner import GpuRunner
from ..sampler import PendingStep, RowWork, Sampler

NOWHERE: Any = None  # what a proposer on a CPU would need


class RoomOnly:
    """Stands where a proposer would be: drafts are found later, by the device."""

    follows = False

    def place(self, row: int, computed: int) -> None:
        """Nothing to remember."""

    def propose(self, work: DraftBatch, tokens: np.ndarray) -> Ints:
        return work.room


class DraftRoom(DraftVerifier):
    """Whether drafts of a row pay, by what came of those before."""

    def __init__(self, rows: int) -> None:
        super().__init__(RoomOnly(), rows, 0)

    def of(self, rows: Ints, room: Ints, min_accepted: float) -> Ints:
        """How many each may have now."""
        none = np.zeros_like(rows)
        return self.draft(DraftBatch(rows, none, none, room, NOWHERE, NOWHERE), min_accepted)

    def learn(self, rows: Ints, outcome: DraftOutcome) -> None:
        self._learn(rows, outcome.drafted, outcome.drawn - 1)


class DraftingSampler(Sampler):
    """Rows draw several tokens."""

    drafts: DraftState
    inputs: StepInputs  # of the step

    def begin(self, drafts: DraftState, inputs: StepInputs) -> None:
        """What it works on."""
        self.drafts, self.inputs = drafts, inputs
        self._index = torch.arange(len(self._tokens), device=self.device)
        self._outcome = torch.ones(len(self._tokens), 2, dtype=torch.int32, device=self.device)

    def fetch(self, pending: PendingStep) -> None:
        super().fetch(pending)
        pending.buffers.outcome.copy_(self._outcome, non_blocking=True)

    def _draw(self, logits: Tensor) -> None:
        """A row that draws several times has its parameters at each, and another position."""
        size = len(logits)
        rows, at, tokens = self._at.drawing[:size], self._at.last[:size], self._tokens[:size]
        there = rows.clamp(min=0)
        each = at_positions(self.rows.parameters, there, self.inputs.positions.index_select(0, at) + 1)
        sample(logits, self._index[:size].where(rows >= 0, -1), each, self._workspace, tokens)
        self._keep_drawn(size)

    def _keep_drawn(self, size: int) -> None:
        rows, at, tokens = self._at.drawing[:size], self._at.last[:size], self._tokens[:size]
        verify(rows, at, tokens, self.inputs, self.rows.state, self.drafts, self._outcome)


def at_positions(parameters: RowParameters, rows: Tensor, positions: Tensor) -> RowParameters:
    """Those of these rows, one after the other, at other positions."""
    each = {name: values.index_select(0, rows) for name, values in parameters._asdict().items() if name != "position"}
    return RowParameters(**each, position=positions)


class DraftingRunner(GpuRunner):
    """Rows have drafts."""

    sampler_type: ClassVar[type[Sampler]] = DraftingSampler

    def __init__(self, *given: Any, lookup: Lookup, adaptive: bool = True, **named: Any) -> None:
        """As GpuRunner; `adaptive`: rows whose drafts do not count have none for a while."""
        super().__init__(*given, **named)
        sizes = self.sizes
        assert sizes.drafts == lookup.drafts and isinstance(self.sampler, DraftingSampler)
        self.lookup = lookup
        self.uses = np.zeros(sizes.rows, np.int64)
        self.drafts = DraftState.make(sizes.rows, sizes.length, self.device)
        self.sampler.begin(self.drafts, self._inputs)
        self.room = DraftRoom(sizes.rows) if adaptive else None

    def _place(self, new: NewRow) -> int:
        row, slot, known = new.row, slot_of(new.ref), new.num_known_tokens
        self.uses[row] += 1
        tokens = to_device(self.log[slot, :known].astype(np.int32), self.device)
        self.drafts.tokens[row, :known].copy_(tokens, non_blocking=True)
        if self.room is not None:
            self.room.place(row, np.empty(0, np.int32), new.num_computed_tokens)
        return super()._place(new)

    def _plan(self, step: Step) -> RowWork:
        rows, firsts = step.rows, self.computed[step.rows]
        known = self.known[rows]
        pending = known - firsts
        room = np.maximum(step.counts - pending, 0)
        room[self.sampler.processors.among(rows)] = 0
        room[self.sampler.tells[rows]] = 0
        if self.room is not None and room.any():
            room = self.room.of(rows, room, step.min_accepted)
        counts = np.minimum(step.counts, pending) + room
        self.computed[rows] = firsts + counts
        draws = np.where(step.counts >= pending, 1 + room, 0)
        sent = np.where(pending == 1, -1, firsts)  # of rows that decode
        return RowWork(rows, counts, firsts, sent, known, draws, self.uses[rows])

    def _counted(self, pending: PendingStep, tokens: np.ndarray) -> np.ndarray:
        work = pending.work
        drawing = work.draws > 0
        rows, draws = work.rows[drawing], work.draws[drawing]
        self.outcome = None
        if (draws <= 1).all():
            return tokens
        begins = np.cumsum(draws) - draws
        drawn, drafted = pending.buffers.outcome.numpy()[begins].T.astype(np.int64)
        self.outcome = DraftOutcome(drawn, drafted)
        alive = self.uses[rows] == work.uses[drawing]  # the others were taken by other sequences
        missed = (draws - drawn)[alive]
        self.computed[rows[alive]] -= missed
        self.known[rows[alive]] -= missed
        if self.room is not None:
            self.room.learn(rows[alive], DraftOutcome(drawn[alive], drafted[alive]))
        return tokens[np.arange(tokens.size) - np.repeat(begins, draws) < np.repeat(drawn, draws)]

    def _decode(self, size: int) -> None:
        self._at.last[:size].copy_(self._starts[:size])
        super()._decode(size)

    def _add_inputs(self, rows: Tensor, starts: Tensor, inputs: StepInputs) -> None:
        propose(rows, starts, self._at.room[: len(rows)], inputs, self.drafts, self.lookup)
