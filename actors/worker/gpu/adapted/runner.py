"""Steps of a model that keeps states of its rows: a place for each row of the batch, and for snapshots, on the device.

Whoever takes a row begins without states, or with a copy of a snapshot; what a row that was preempted or aborted leaves
is nobody's, and is written over. All that is done to states is queued on the device in the order of steps, so that a
step may be started ahead as any other: a snapshot is copied behind the step that it is of, and before any that goes on
from it. All of it dies with the worker, and rows are computed again from their logs (cpu/memory/states.py).

How many tokens a row has in a step the host knows at all times, as such a model has no drafts. Graphs hold steps in
which all rows go on by a token from their states (graph_trial.py says of which models); rows that fill these up have
the states of one place more, which are nobody's. Any other step is in groups that the host makes, and started kernel by
kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from ....protocol.step import NewRow, Step
from ...cpu.memory.states import RowStates
from ..executor import GpuBatch
from ..graphs import StepSize
from ..runner import GpuRunner
from ..sampler import RowWork
from .groups import Group, GroupRules, KeptRows


class StatefulRunner(GpuRunner):
    """See GpuRunner. Steps are tried with one place for states, which all rows have; real ones come with the pools."""

    def __init__(self, rules: GroupRules, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.rules = rules
        self.states = self._make_states(1, 0)
        self._groups: list[Group] = []  # of the step that is being started
        self._saves: list[list[int]] = []

    def give_states(self, snapshots: int) -> None:
        """Memory for the states of all rows and one that is none, and for so many snapshots."""
        self.states = self._make_states(self.sizes.rows + 1, snapshots)

    def _make_states(self, rows: int, snapshots: int) -> RowStates:
        return RowStates(self.model.shape.kv.states, rows, snapshots, self.model.dtype, self.device)

    def _place(self, new: NewRow) -> int:
        self.states.begin(new.row, new.num_computed_tokens, new.snapshot)
        return super()._place(new)

    def _plan(self, step: Step) -> RowWork:
        work = super()._plan(step)
        self.states.check(work.rows, work.firsts)
        self.states.length[work.rows] = work.firsts + work.counts
        self._groups, self._saves = self.rules.of(work.counts, work.firsts), step.saves.tolist()
        return work

    def _decoding_size(self, work: RowWork) -> int | None:
        """A graph has one group of rows that all have states."""
        together = len(self._groups) == 1 and self._groups[0].past > 0
        return super()._decoding_size(work) if together and not self.model.eager else None

    def _seen(self, batch: GpuBatch, given: bool = False) -> GpuBatch:
        count, groups = len(batch.inputs.lengths), self.rules.of_nobody(batch)
        if given:
            rows, groups, self._groups = self._at.rows[:count], self._groups or groups, []
        else:  # whoever fills up is -1: the last place is theirs
            rows = torch.remainder(self._at.drawing[:count], self.states.rows)
        return super()._seen(batch, given)._replace(kept=KeptRows(self.states, rows, groups))

    def _after(self, size: int | StepSize) -> None:
        for row, snapshot in self._saves:
            self.states.save(row, snapshot)
        super()._after(size)
