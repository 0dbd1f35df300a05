"""What operators ask of all engines, as a frontend asks it; and what a sleep means for those who come meanwhile.

Nothing of it is kept here: that an engine sleeps stands in shared memory (shm/kv_map/sleep.py), and a frontend's
successor finds the operator's request in its journal.
"""

from __future__ import annotations

from typing import cast

from actorserve.http.errors import ApiError
from actorserve.shm.kv_map.sleep import Part, SleepWord

from ..protocol.administration import Mode, Sleep, WakeUp
from ..runtime.process import Context
from .rpc import Calls

PARTS = {"weights": Part.WEIGHTS, "kv_cache": Part.KV}


class SleepWatch:
    """The engines' words, as any frontend may read them."""

    def __init__(self, context: Context) -> None:
        self._words = [SleepWord(context.segment.map, offset) for offset in context.system.kv_map_offsets]

    def is_on(self) -> bool:
        """Does an engine sleep, or is it to?"""
        return any(word.state.is_on for word in self._words)

    def refusal(self) -> ApiError | None:
        """What a request gets that comes now; None where it is taken."""
        if all((state := word.state).is_on and state.refuses for word in self._words):
            return asleep("The server sleeps; POST /wake_up wakes it.")
        return None

    def overdue(self, arrival_ns: int, now_ns: int) -> ApiError | None:
        """What a request of that time gets that nobody has begun with; None where it waits on."""
        for word in self._words:
            state = word.state
            if not state.is_on:
                return None
            if now_ns - max(arrival_ns, word.since_ns) < state.wait_s * 1_000_000_000:
                return None
        return asleep(f"The server sleeps, and was not woken within {self._words[0].state.wait_s} s.")


def asleep(text: str) -> ApiError:
    """503."""
    return ApiError(503, text, code="asleep", retry_after=1)


class Administration:
    """Of one frontend's engine."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._calls = calls
        self._watch = SleepWatch(context)

    async def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> None:
        """Where requests end first, that takes as long as they take."""
        await self._calls.ask_engines(
            lambda number: Sleep(number, level, cast(Mode, mode), refuses, wait_s), patient=True
        )

    async def wake_up(self, parts: list[str]) -> None:
        """Weights take as long to load as they take."""
        wanted = Part.NONE
        for part in parts:
            wanted |= PARTS[part]
        await self._calls.ask_engines(lambda number: WakeUp(number, int(wanted)), patient=True)

    def is_sleeping(self) -> bool:
        """Does an engine sleep, or is it to?"""
        return self._watch.is_on()
