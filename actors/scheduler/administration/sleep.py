"""An engine's sleep: what operators have asked for, and who of them waits for it.

The state is in shared memory (shm/kv_map/sleep.py), and everything follows from it: workers are parked while it says
so, whatever dies. Who waited for an answer asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actorserve.shm.kv_map.sleep import Part, SleepState, SleepWord


class SleepControl:
    """`state` is what the word says; `parked` are the members of the worker's group that have given all back."""

    def __init__(self, word: SleepWord) -> None:
        self._word = word
        self.state = word.state
        self.parked: set[int] = set()
        self._wait_for_sleep: dict[int, None] = {}  # calls, each of which may be asked again
        self._wait_for_waking: dict[int, None] = {}

    @property
    def is_asleep(self) -> bool:
        """Is anything of what computes given back?"""
        return self.state.asleep is not Part.NONE

    def drain(self, call: int, wanted: SleepState) -> None:
        """Requests that have begun go on to their ends first."""
        self._wait_for_sleep[call] = None
        if not self.is_asleep:
            self._set(wanted._replace(draining=True, asleep=Part.NONE))

    def leave(self, wanted: SleepState) -> None:
        """Likewise, and nobody waits for it."""
        self._set(wanted._replace(draining=True, asleep=Part.NONE))

    @property
    def leaves_by_itself(self) -> bool:
        """Does it drain, and nobody waits for that?"""
        return self.state.draining and self.state.idle and not self._wait_for_sleep

    def drained(self, is_drained: Callable[[], bool]) -> bool:
        """Is nothing left that has begun?"""
        return self.state.draining and is_drained()

    @property
    def is_waited_for(self) -> bool:
        """Does somebody wait for an answer?"""
        return bool(self._wait_for_sleep or self._wait_for_waking)

    def is_asked_by(self, call: int) -> bool:
        """Is this one asked again?"""
        return call in self._wait_for_sleep or call in self._wait_for_waking

    def fall_asleep(self, wanted: SleepState, calls: Iterable[int] = ()) -> None:
        """From now on. Who is parked already need not be again, unless more is to be given back."""
        if not (self.state.is_parked and self.state.level == wanted.level):
            self.parked.clear()
        self._wait_for_sleep.update(dict.fromkeys(calls))
        self._set(wanted._replace(draining=False, asleep=Part.ALL))

    def wake(self, parts: Part, call: int) -> None:
        """These are wanted again; awake is who has all, and one that slept by itself once there is a worker."""
        asleep = self.state.asleep & ~parts
        self._set(self.state._replace(asleep=asleep, draining=False) if asleep else SleepState(idle=self.state.idle))
        self._wait_for_waking[call] = None

    def rouse(self) -> None:
        """It wakes by itself; `is_awake` is to follow."""
        self._set(SleepState(idle=True))

    def is_awake(self) -> None:
        """It has woken by itself, or does not leave: there is a worker."""
        self._set(SleepState())

    def _set(self, state: SleepState) -> None:
        self._word.state = self.state = state

    def answers(self, members: int, has_worker: bool) -> list[int]:
        """The calls to answer now: all members are parked, or have a model again if they are to have one."""
        calls: list[int] = []
        falls_asleep = self.state.is_parked and len(self.parked) < members
        if not (falls_asleep or self.state.draining):  # or somebody has woken it meanwhile
            calls += self._wait_for_sleep
            self._wait_for_sleep.clear()
        if self.state.is_parked or has_worker:
            calls += self._wait_for_waking
            self._wait_for_waking.clear()
        return calls
