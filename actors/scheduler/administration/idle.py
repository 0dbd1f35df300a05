"""--sleep-idle-seconds: an engine falls asleep by itself where nothing is asked of its model, and wakes for what is.

All engines of a model sleep and wake together. Who chooses an engine for a request, or gives requests away, goes by
those that have a worker, so one that slept by itself would be asked for nothing as long as another is up. What the
others are asked for stands on the board. Where they are told to sleep (/models/unload) each falls asleep once what has
begun in all of them has ended, so one that has does not wake before the last: that would wait for it for ever.

The word says `idle` until the next worker is met, so that everybody sees why there is no model. Who dies in between has
a successor that finds the word, and what waits.
"""

from __future__ import annotations

import time

from actorserve.shm.adapters.registry import AdapterState
from actorserve.shm.kv_map.sleep import SleepWord

from ...engines.loads import EngineLoads
from ...runtime.process import Context
from ..scheduler import Scheduler


class IdleWatch:
    """What is asked of one engine's model, and since when nothing is."""

    def __init__(self, context: Context, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._idle_s = context.served.config.sleep_idle_seconds
        self._loads = EngineLoads(context.board, context.system, context.spec.model)
        others = [engine for engine in context.served.engines if engine != context.spec.engine]
        self._prompted = {engine: self._loads.load(engine).prompted for engine in others}
        memory, offsets = context.segment.map, context.system.kv_map_offsets
        self._words = [SleepWord(memory, offsets[engine]) for engine in others]
        self._busy_at = time.monotonic()

    @property
    def is_on(self) -> bool:
        """Does it ever fall asleep by itself?"""
        return self._idle_s > 0

    def look(self, is_called: bool, has_worker: bool) -> bool:
        """Is anything asked? `is_called`: somebody waits for an answer of the workers."""
        asked = is_called or bool(self._scheduler.sequences) or self._asked_elsewhere() or self._loads_adapters()
        if asked or self._scheduler.sleep.state.is_on or not has_worker:
            self._busy_at = time.monotonic()
        return asked

    def forget(self) -> None:
        """The engine is told to sleep: what came before does not wake it."""
        self._asked_elsewhere()

    def others_drain(self) -> bool:
        """Does another engine of the model sleep only once what has begun has ended?"""
        return any(word.state.draining for word in self._words)

    def is_over(self) -> bool:
        """Was nothing asked for so long that the engine is to sleep?"""
        return time.monotonic() - self._busy_at >= self._idle_s

    def _asked_elsewhere(self) -> bool:
        """Of the model's other engines, now or since the last look."""
        asked = False
        for engine, prompted in self._prompted.items():
            load = self._loads.load(engine)
            asked |= bool(load.running or load.waiting) or load.prompted != prompted
            self._prompted[engine] = load.prompted
        return asked

    def _loads_adapters(self) -> bool:
        """A worker is to read one that was asked for by its name."""
        adapters = self._scheduler.adapters
        return adapters is not None and any(one.state is AdapterState.LOADING for one in adapters.registry.all())
