"""A line every --log-stats-interval seconds for as long as the server has something to do.

The supervisor writes it, of which there is one, from words of the scheduler on the board: it asks nobody, and comes
whoever is killed meanwhile. The words that count go on from life to life (gauges.py), so that nothing is told twice.
"""

from __future__ import annotations

import logging
import time

from ..telemetry.gauges import SchedulerGauge
from .shared_memory import Memory

log = logging.getLogger("activity")


class Activity:
    """Looks at the board as often as it is asked to, and says what it sees when it is time."""

    def __init__(self, memory: Memory) -> None:
        self._interval_s = memory.system.config.log_stats_interval
        self._memory = memory
        self._before = self._gauges()
        self._told_at = time.monotonic()

    def look(self) -> None:
        """Say what happened since the last line, once that is long enough ago."""
        seconds = time.monotonic() - self._told_at
        if not self._interval_s or seconds < self._interval_s:
            return
        self._told_at += seconds
        before, self._before = self._before, self._gauges()
        figures = figures_between(before, self._before, seconds)
        if figures:
            log.info("%s", describe_load(figures), extra={"fields": figures})

    def _gauges(self) -> list[int]:
        """The sums of all schedulers'."""
        schedulers = self._memory.system.of_kind("scheduler")
        words = (self._memory.board.gauges(scheduler.position) for scheduler in schedulers)
        return [sum(values) for values in zip(*words, strict=True)]


def figures_between(before: list[int], now: list[int], seconds: float) -> dict[str, float | None]:
    """What was done between two looks at the gauges; nothing if that was nothing, and nothing is to be done."""

    def increase(number: SchedulerGauge) -> int:
        return max(0, now[number] - before[number])

    running, waiting = now[SchedulerGauge.RUNNING], now[SchedulerGauge.WAITING]
    generated, prompted = increase(SchedulerGauge.GENERATED), increase(SchedulerGauge.PROMPTED)
    if not (running or waiting or generated or prompted):
        return {}
    blocks, looked_up = now[SchedulerGauge.BLOCKS_TOTAL], increase(SchedulerGauge.PREFIX_QUERIES)
    used = blocks - now[SchedulerGauge.BLOCKS_FREE]
    hits = min(looked_up, increase(SchedulerGauge.PREFIX_HITS))
    return {
        "running": running,
        "waiting": waiting,
        "prompt_tokens_per_s": round(prompted / seconds, 1),
        "generated_tokens_per_s": round(generated / seconds, 1),
        "kv_use_percent": round(100 * used / blocks, 1) if blocks else 0.0,
        "prefix_hit_percent": round(100 * hits / looked_up, 1) if looked_up else None,
    }


def describe_load(figures: dict[str, float | None]) -> str:
    """For people; without the hit rate where no prompt was looked up."""
    hits = figures["prefix_hit_percent"]
    return (
        f"{figures['running']} running, {figures['waiting']} waiting; "
        f"{figures['prompt_tokens_per_s']} prompt and {figures['generated_tokens_per_s']} generated tokens/s; "
        f"{figures['kv_use_percent']} % of KV memory in use"
        + ("" if hits is None else f", {hits} % of prompts from the prefix cache")
    )
