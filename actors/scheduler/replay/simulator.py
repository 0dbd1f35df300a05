"""What another policy would have made of a recording: the real Scheduler, a worker of numbers, a clock of its own.

Sequences come when they came; their tokens are those of the recorded logs, by position, so that they end where they
ended. A step of x tokens takes a + b·x seconds, fitted to what the recorded steps took; nothing else takes any time.
Who was stopped, cancelled or still running at the end of the file ends with its last recorded token, and who had none
yet at the time when it was cancelled. Left out is what is known too little: who was turned away (the queue was full),
or was waiting when the file ended. There are no drafts, since what a draft would have been is not in the file.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from actorserve.shm.table.table import RequestTable, slot_of, table_bytes

from ...options.config import Config
from ...protocol.messages import Finish
from ...protocol.step import Step, StepDone
from ...protocol.topology import System
from ..limits import Limits
from ..policy.plan_timing import PlanTiming
from ..scheduler import Scheduler
from .file import RecordedLife
from .replayer import private_segment
from .summary import ReplayStatistics, SequenceHistory

NATURAL = (Finish.STOP, Finish.LENGTH)  # a sequence comes to these by itself
OUTLIER = 5.0  # times the median: the machine did something else in that step


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: base + token · its tokens."""

    base: float
    token: float

    @classmethod
    def fitted(cls, measured: list[tuple[int, float]]) -> StepTime:
        """Least squares, without outliers; neither part is below 0."""
        data = np.array(measured, float).reshape(-1, 2)
        data = data[data[:, 1] <= OUTLIER * np.median(data[:, 1])] if len(data) else data
        if not len(data):
            raise ValueError("no step has come back in this recording: nothing says what one takes")
        x, y = data[:, 0], data[:, 1]
        spread = float(((x - x.mean()) ** 2).sum())
        slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
        slope = min(max(slope, 0.0), float(y.sum() / max(1.0, x.sum())))
        return cls(float(y.mean()) - slope * float(x.mean()), slope)

    def __call__(self, tokens: int) -> float:
        return self.base + self.token * tokens


class Simulation:
    """One run over all histories of a recording."""

    def __init__(
        self, head: RecordedLife, config: Config, histories: list[SequenceHistory], step_time: StepTime, blocks: int
    ) -> None:
        system = System(config, head.model)
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_queued=system.max_queued,
            max_num_batched_tokens=config.max_num_batched_tokens,
            block_size=config.block_size,
            prefix_caching=config.enable_prefix_caching and head.model.encoder is None,
            by_priority=config.scheduling_policy == "priority",
            max_queued_tokens=config.max_num_queued_tokens,
            long_prefill_tokens=config.long_prefill_token_threshold,
            whole_prompts=head.model.encoder is not None,
            target_itl_s=None if config.target_itl_ms is None else config.target_itl_ms / 1e3,
        )
        known = [history for history in histories if _is_known(history)]
        self.left_out = len(histories) - len(known)
        self.statistics = ReplayStatistics()
        self._step_time = step_time
        sizes = (min(len(known), config.max_num_seqs + system.max_queued) + 1, *system.table_sizes[1:])
        self._segment = private_segment(table_bytes(*sizes))
        self._table = RequestTable.create(self._segment, 0, *sizes)
        self._free = list(range(sizes[0]))
        self._scheduler = Scheduler(self._table, limits, head.model.end_tokens)
        self._filler = next(token for token in range(head.model.vocab_size) if token not in head.model.end_tokens)
        self._scheduler.begin_epoch(1, min(blocks, self._scheduler.kv.blocks))
        self._timing = PlanTiming(self._scheduler, lambda: self.statistics.now / 1e9)
        self._hold = 0  # the time before which it does not plan
        self._events: list[tuple[int, int, SequenceHistory]] = []
        for number, history in enumerate(known):
            self._events.append((history.admitted, number, history))
        heapq.heapify(self._events)
        self._running: dict[int, SequenceHistory] = {}  # by simulated refs
        self._drawn: dict[int, int] = {}  # tokens that the worker has sampled
        self._cancels: list[tuple[int, int]] = []  # (when, ref) of those that were cancelled before any token
        self._worker: deque[tuple[int, Step]] = deque()  # (when it is done, step)

    def run(self) -> None:
        """Until all have ended. ValueError if the scheduler can plan nothing for those that wait."""
        self.statistics.begin(self._events[0][0] if self._events else 1)
        while self._events or self._running:
            times = [self._events[0][0]] if self._events else []
            times += [self._worker[0][0]] if self._worker else []
            times += [self._cancels[0][0]] if self._cancels else []
            times += [self._hold] if self._hold else []
            if not times:
                raise ValueError(f"{len(self._running)} sequences wait, and there are too few blocks for the first")
            self.statistics.now = max(self.statistics.now, min(times))
            self._turn()
        self._segment.close()

    def _turn(self) -> None:
        now = self.statistics.now
        while self._worker and self._worker[0][0] <= now:
            self._come_back(*self._worker.popleft())
        while self._events and self._events[0][0] <= now:
            self._admit(heapq.heappop(self._events)[2])
        while self._cancels and self._cancels[0][0] <= now:
            self._scheduler.end(heapq.heappop(self._cancels)[1], Finish.ABORT)
        while not self._holds() and (step := self._scheduler.plan()) is not None:
            self.statistics.planned(step, self._scheduler)
            tokens = self._scheduler.in_flight[-1].tokens
            begun = max(now, self._worker[-1][0] if self._worker else 0)
            self._worker.append((begun + max(1, int(1e9 * self._step_time(tokens))), step))
        self.statistics.preempted(self._scheduler)
        self._clear_moved()

    def _holds(self) -> bool:
        hold_s = self._timing.hold_s()
        self._hold = self.statistics.now + math.ceil(1e9 * hold_s) if hold_s else 0
        return hold_s > 0

    def _admit(self, history: SequenceHistory) -> None:
        fact = history.fact
        ref = self._table.open_slot(self._free.pop(), fact.params, self.statistics.now)
        self._table.write_prompt(ref, fact.packed_prompt, fact.hashes, fact.limit)
        self.statistics.admitted(msgspec.structs.replace(fact, ref=ref, packed_tokens=fact.packed_prompt))
        self._running[ref], self._drawn[ref] = history, 0
        self._scheduler.admit(ref)
        if not history.answer:
            heapq.heappush(self._cancels, (self.statistics.now + history.ended - history.admitted, ref))
        self._clear_moved()

    def _come_back(self, _: int, step: Step) -> None:
        scheduler, tokens = self._scheduler, []
        planned = scheduler.in_flight[0]
        for ref in planned.refs:
            history = self._running.get(ref)
            place = self._drawn.get(ref, 0)
            tokens.append(history.answer[place] if history and place < len(history.answer) else self._filler)
            if history:
                self._drawn[ref] = place + 1
        scheduler.apply(StepDone.make(step, tokens, self._step_time(planned.tokens)))
        for ref in planned.refs:
            history = self._running.get(ref)
            if history and history.answer and history.finish not in NATURAL and self._drawn[ref] >= len(history.answer):
                scheduler.end(ref, Finish.ABORT)

    def _clear_moved(self) -> None:
        """Who has ended gives its slot back."""
        for ref in self._scheduler.lifecycle.take_moved():
            self.statistics.advanced(ref, self._table)
            if self._table.finish(ref) and self._running.pop(ref, None) is not None:
                del self._drawn[ref]
                self._free.append(slot_of(ref))
        self._scheduler.announce_ends()


def _is_known(history: SequenceHistory) -> bool:
    return bool(history.answer) or (history.finish != Finish.REJECTED and history.ended > 0)


def with_options(config: Config, **options: Any) -> Config:
    """The recorded options with others; None leaves one as it was. ValueError says which cannot be."""
    values = msgspec.to_builtins(config)
    values |= {name: value for name, value in options.items() if value is not None}
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
