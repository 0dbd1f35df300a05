"""What a scheduler did, over a replay or a simulation: steps, waits, KV use, and the story of each sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from actorserve.shm.table.table import RequestTable

from ...protocol.step import Step, StepDone
from .file import Fact

if TYPE_CHECKING:
    from ..scheduler import Scheduler


@dataclass
class Story:
    """One sequence. Times are ns; 0 where it did not come to that."""

    fact: Fact
    admitted: int
    scheduled: int = 0
    first: int = 0
    ended: int = 0
    finish: int = 0
    answer: list[int] = field(default_factory=list)


class Figures(msgspec.Struct, frozen=True):
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


class Tally:
    """Told of everything; `now` is the time at which that happens."""

    def __init__(self) -> None:
        self.now = self._begun = 0
        self.stories: dict[int, Story] = {}
        self.measured: list[tuple[int, float]] = []  # tokens of a step, and its seconds in the worker
        self.steps = self.tokens = 0
        self._preempted = self._preempted_before = 0
        self._use: list[float] = []

    def begin(self, now: int) -> None:
        """A scheduler is born."""
        self.now = now
        self._begun = self._begun or now
        self._preempted_before += self._preempted
        self._preempted = 0

    def admitted(self, fact: Fact) -> None:
        """A sequence is heard of, perhaps by another scheduler again."""
        self.stories.setdefault(fact.ref, Story(fact, self.now))

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
            if story := self.stories.get(row.ref):
                story.scheduled = story.scheduled or self.now

    def preempted(self, scheduler: Scheduler) -> None:
        """How often so far."""
        self._preempted = scheduler.preemptions + scheduler.planner.preemptions

    def advanced(self, ref: int, table: RequestTable) -> None:
        """Log or finish word of a sequence have moved."""
        story = self.stories.get(ref)
        if story is None:
            return
        if not story.first and table.generated(ref):
            story.first = self.now
        if not story.ended and (finish := table.finish(ref)):
            story.finish, story.ended = finish, self.now
            _keep_answer(story, table)

    def end(self, table: RequestTable) -> None:
        """A scheduler is dead."""
        for story in self.stories.values():
            if not story.ended and table.prompt_length(story.fact.ref) is not None:
                _keep_answer(story, table)

    def figures(self) -> Figures:
        """All of it in numbers."""
        stories = list(self.stories.values())
        queue = [(story.scheduled - story.admitted) / 1e9 for story in stories if story.scheduled]
        first = [(story.first - story.admitted) / 1e9 for story in stories if story.first]
        return Figures(
            seconds=(self.now - self._begun) / 1e9,
            requests=len(stories),
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


def _keep_answer(story: Story, table: RequestTable) -> None:
    ref, start = story.fact.ref, story.fact.prompt_tokens
    story.answer = list(table.token_ids(ref, start, start + table.generated(ref)))


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _p99(values: list[float]) -> float | None:
    return float(np.percentile(values, 99)) if values else None
