"""What operators have asked of an engine elsewhere, and is not answered: in the memory of its link alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.administration import (
    AskedOfEngine,
    CacheReset,
    CallWorkers,
    CheckWeights,
    EngineAnswer,
    Pause,
    Paused,
    PrefixCacheReset,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    SleepChanged,
    WakeUp,
    WorkersCalled,
)

MOST_CALLS = 64
Call = AskedOfEngine | CheckWeights
ANSWERS: dict[type[Call], type[EngineAnswer]] = {  # beside Unanswered
    ResetPrefixCache: PrefixCacheReset,
    ResetEncoderCache: CacheReset,
    Pause: Paused,
    Resume: Paused,
    Sleep: SleepChanged,
    WakeUp: SleepChanged,
    CheckWeights: SleepChanged,
    CallWorkers: WorkersCalled,
}


@dataclass(slots=True)
class Open:
    """A call that is not answered."""

    call: Call
    since: float
    told: bool = False  # that all it waited for has ended, on this connection


def waits(call: Call) -> bool:
    """Is it a pause or a sleep once all that has begun has ended?"""
    return isinstance(call, Pause | Sleep) and call.mode == "wait"


class OpenCalls(dict[int, Open]):
    """By their numbers."""

    def begin(self, call: Call, now: float) -> Open:
        """One more; where they are too many, for the first nobody waits any more."""
        if len(self) >= MOST_CALLS:
            del self[next(iter(self))]
        made = self[call.call] = Open(call, now)
        return made

    def waiting(self, *kinds: type[Pause | Sleep]) -> list[Open]:
        """Those of these kinds that wait for an end of which the engine was not told yet."""
        return [one for one in self.values() if isinstance(one.call, kinds) and waits(one.call) and not one.told]

    def end(self, are_over: Callable[[Call], bool]) -> list[wire.Answers]:
        """Of these none is waited for any more: their answers."""
        over = [one.call for one in self.values() if are_over(one.call)]
        for call in over:
            del self[call.call]
        return [ANSWERS[type(call)](call.call) for call in over]
