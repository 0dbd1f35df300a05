"""Engines of this machine that have fallen asleep by themselves (--sleep-idle-seconds) wake once any engine of their
model is asked. They look at the others' loads now and then; whoever is asked wakes them at once.
"""

from __future__ import annotations

from actorserve.shm.kv_map.sleep import SleepWord

from ..runtime.process import Context


class IdleEngines:
    """Those of a link's model."""

    def __init__(self, context: Context) -> None:
        memory, system = context.segment.map, context.system
        home = [engine for engine in context.served.engines if engine not in system.remote_engines]
        self._words = [SleepWord(memory, system.kv_map_offsets[engine]) for engine in home]

    @property
    def sleep(self) -> bool:
        """Does one, and has not seen yet that it is to wake?"""
        states = (word.state for word in self._words)
        return any(state.idle and state.is_on for state in states)
