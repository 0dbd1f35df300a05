"""What a scheduler did, over a replay or a simulation: steps, waits, KV use, and the history of each sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from actorserve.shm.table.table import RequestTable

from ...protocol.step import Step, StepDone
from .file import RecordedSequence

if TYPE_CHECKING:
    from ..scheduler import Scheduler


@dataclass
class SequenceHistory:
    """One sequence. Times are ns; 0 where it did not come to that."""

    fact: RecordedSequence
    admitted: int
    scheduled: int = 0
    first: int = 0
    ended: int = 0
    finish: int = 0
    answer: list[int] = field(default_factory=list)


class ReplaySummary(msgspec.Struct, frozen=True):
    """Times in seconds; waits begin with admission. None where nobody came so far."""

    seconds: float
    requests: int
    steps: int
    tokens: int  # planned, those of preempted sequences again
    tokens_a_step: float
    preemptions: int
    mean_queue_s: float | None
    p99_queue_s: float | None
    mean_ttft_s: float | None
    p99_ttft_s: float | None
    mean_kv_use: float
    most_kv_use: float


class ReplayStatistics:
    """Told of everything; `now` is the time at which that happens."""

    def __init__(self) -> None:
        self.now = self._begun = 0
        self.histories: dict[int, SequenceHistory] = {}
        self.measured: list[tuple[int, float]] = []  # tokens of a step, and its seconds in the worker
        self.steps = self.tokens = 0
        self._preempted = self._preempted_before = 0
        self._use: list[float] = []

    def begin(self, now: int) -> None:
        """A scheduler starts."""
        self.now = now
        self._begun = self._begun or now
        self._preempted_before += self._preempted
        self._preempted = 0

    def admitted(self, fact: RecordedSequence) -> None:
        """A sequence is heard of, perhaps by another scheduler again."""
        self.histories.setdefault(fact.ref, SequenceHistory(fact, self.now))

    def came_back(self, done: StepDone, scheduler: Scheduler) -> None:
        """A step's result, before the scheduler has it."""
        if done.epoch == scheduler.epoch and scheduler.in_flight:
            self.measured.append((scheduler.in_flight[0].tokens, done.seconds))

    def planned(self, step: Step, scheduler: Scheduler) -> None:
        """A step was planned."""
        self.steps += 1
        self.tokens += step.num_tokens
        self._use.append(1 - scheduler.pool.free / scheduler.pool.count)
        for row in step.new_rows:
            if history := self.histories.get(row.ref):
                history.scheduled = history.scheduled or self.now

    def preempted(self, scheduler: Scheduler) -> None:
        """How often so far."""
        self._preempted = scheduler.preemptions + scheduler.planner.memory.preemptions

    def advanced(self, ref: int, table: RequestTable) -> None:
        """Log or finish word of a sequence have moved."""
        history = self.histories.get(ref)
        if history is None:
            return
        if not history.first and table.generated(ref):
            history.first = self.now
        if not history.ended and (finish := table.finish(ref)):
            history.finish, history.ended = finish, self.now
            _keep_answer(history, table)

    def end(self, table: RequestTable) -> None:
        """A scheduler is dead."""
        for history in self.histories.values():
            if not history.ended and table.prompt_length(history.fact.ref) is not None:
                _keep_answer(history, table)

    def summary(self) -> ReplaySummary:
        """All of it in numbers."""
        histories = list(self.histories.values())
        queue = [(history.scheduled - history.admitted) / 1e9 for history in histories if history.scheduled]
        first = [(history.first - history.admitted) / 1e9 for history in histories if history.first]
        return ReplaySummary(
            seconds=(self.now - self._begun) / 1e9,
            requests=len(histories),
            steps=self.steps,
            tokens=self.tokens,
            tokens_a_step=self.tokens / max(1, self.steps),
            preemptions=self._preempted_before + self._preempted,
            mean_queue_s=_mean(queue),
            p99_queue_s=_p99(queue),
            mean_ttft_s=_mean(first),
            p99_ttft_s=_p99(first),
            mean_kv_use=_mean(self._use) or 0.0,
            most_kv_use=max(self._use, default=0.0),
        )


def _keep_answer(history: SequenceHistory, table: RequestTable) -> None:
    ref, start = history.fact.ref, history.fact.prompt_tokens
    history.answer = list(table.token_ids(ref, start, start + table.generated(ref)))


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _p99(values: list[float]) -> float | None:
    return float(np.percentile(values, 99)) if values else None
