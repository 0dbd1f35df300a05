"""Whether an engine plans steps: what operators have asked for, and who of them waits for it.

The state is in shared memory (shm/kv_map/pause.py), so a successor holds as its predecessor did. Who waited for an
answer asks again.
"""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.kv_map.pause import PauseState, PauseWord


class PauseControl:
    """`state` is read before each plan; `callers` are to be answered once nothing runs any more."""

    def __init__(self, word: PauseWord) -> None:
        self._word = word
        self.state = word.state
        self._callers: list[int] = []

    def set(self, state: PauseState) -> None:
        """From now on."""
        self._word.state = self.state = state

    def drain(self, call: int, until_told: bool = False) -> None:
        """Requests that have begun go on to their ends; `call` is answered then. `until_told`: others that have begun
        may come still.
        """
        if self.state is PauseState.RUNNING:
            self.set(PauseState.ENDING if until_told else PauseState.DRAINING)
        elif self.state is PauseState.ENDING and not until_told:
            self.set(PauseState.DRAINING)
        self._callers.append(call)

    def is_asked_by(self, call: int) -> bool:
        """Is this one, which waits, asked again?"""
        return call in self._callers

    def drained(self, is_drained: Callable[[], bool]) -> list[int]:
        """The calls to answer now: nothing that has begun is left, so nothing is planned any more."""
        waited_for = self.state is PauseState.DRAINING or (self.state is PauseState.ENDING and bool(self._callers))
        if waited_for and not is_drained():
            return []
        if self.state is PauseState.DRAINING:
            self.set(PauseState.PAUSED)
        return self.take_callers()

    def take_callers(self) -> list[int]:
        """Those that have not been answered."""
        callers, self._callers = self._callers, []
        return callers
