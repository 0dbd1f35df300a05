"""The link's words on the board, in the place of a scheduler's: what it counts itself of this server's sequences, and
beside it what the engine's own scheduler says, of which counts go on over lives and connections.
"""

from __future__ import annotations

from actorserve.shm.board.board import BoardWriter

from ..protocol.messages import FAILURES, Finish
from ..telemetry.gauges import SCHEDULER_KEPT
from ..telemetry.gauges import SchedulerGauge as Gauge
from .sequences import Sequences


class LinkGauges:
    """Counts go on from what a predecessor has left."""

    def __init__(self, sequences: Sequences, status: BoardWriter, before: list[int]) -> None:
        self._sequences, self._status = sequences, status
        self._base = [before[gauge] if gauge in SCHEDULER_KEPT else 0 for gauge in Gauge]
        self._there = [0] * len(Gauge)  # since this life began
        self._seen: list[int] = []  # as this connection said last
        self.losses = 0  # of the engine, in this life
        self._shown: list[int] = [-1] * len(Gauge)

    def tell(self, gauges: list[int]) -> None:
        """The engine's scheduler says so. ValueError if that cannot be."""
        if len(gauges) < len(Gauge) or min(gauges) < 0:
            raise ValueError(f"gauges {gauges}")
        for gauge in Gauge:
            if gauge not in SCHEDULER_KEPT:
                self._there[gauge] = gauges[gauge]
            elif self._seen and gauge is not Gauge.LINK_LOSSES:
                self._there[gauge] += max(0, gauges[gauge] - self._seen[gauge])
        self._seen = gauges

    @property
    def waiting(self) -> int:
        """Sequences that have no row there, or no slot."""
        own = self._sequences
        return self._there[Gauge.WAITING] + len(own.held) - own.sent

    def forget(self) -> None:
        """There is nobody who says anything."""
        self._seen = []
        for gauge in Gauge:
            if gauge not in SCHEDULER_KEPT:
                self._there[gauge] = 0

    def write(self, is_up: bool, delay_ns: int = 0) -> None:
        """What has changed. Of an engine that does not compute now no KV memory is shown, so that nobody chooses it."""
        now = self._now()
        now[Gauge.LINK_DELAY_US] = delay_ns // 1000
        if not is_up:
            now[Gauge.BLOCKS_TOTAL] = now[Gauge.BLOCKS_FREE] = 0
        for number, value in enumerate(now):
            if value != self._shown[number]:
                self._status.set_gauge(number, value)
        self._shown = now

    def _now(self) -> list[int]:
        own, stats = self._sequences, self._sequences.stats
        ends = stats.ends
        unsent = len(own.held) - own.sent
        found = [base + there for base, there in zip(self._base, self._there, strict=True)]
        for gauge, value in {
            Gauge.GENERATED: own.generated,
            Gauge.PROMPTED: own.prompted,
            Gauge.REJECTED: own.rejected,
            Gauge.FINISHED: own.finished,
            Gauge.ENDED_STOP: ends[Finish.STOP] + ends[Finish.STOP_STRING],
            Gauge.ENDED_LENGTH: ends[Finish.LENGTH],
            Gauge.ENDED_ABORT: ends[Finish.ABORT],
            Gauge.ENDED_ERROR: sum(ends[one] for one in FAILURES - {Finish.REJECTED}),
            Gauge.SURVIVED_SCHEDULER: stats.survived_scheduler,
            Gauge.SURVIVED_WORKER: stats.survived_worker,
            Gauge.LINK_LOSSES: self.losses,
        }.items():
            found[gauge] = self._base[gauge] + value
        if unsent:
            found[Gauge.WAITING] += unsent
            unsent_prompts = (held.num_prompt_tokens for held in own.held.values() if not held.is_sent)
            found[Gauge.WAITING_TOKENS] += sum(unsent_prompts)
        return found
