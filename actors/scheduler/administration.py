"""What operators ask of an engine, beside what is said of requests: its sleep.

Of deaths: all that is asked for is stored first (shm/kv_map/sleep.py), and done whenever it is found there. A
scheduler's successor finds an engine that is to sleep, and lets the workers look; workers look when they start; and an
answer that is lost is asked for again by the frontend (frontend/rpc.py).
"""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.kv_map.sleep import Part, SleepState

from ..protocol.administration import LookAtSleep, Parked, Sleep, SleepChanged, WakeUp
from ..protocol.messages import Finish, Message, frontend_of_call
from ..runtime.process import Context
from .scheduler import Scheduler


class Administration:
    """Of one scheduler's life."""

    def __init__(
        self, context: Context, scheduler: Scheduler, workers: int, tell_workers: Callable[[Message], None]
    ) -> None:
        self._context, self._scheduler = context, scheduler
        self._workers, self._tell_workers = workers, tell_workers
        self._sleep = scheduler.sleep
        if self._sleep.state.is_parked:
            tell_workers(LookAtSleep())

    @property
    def is_parked(self) -> bool:
        """Are its workers without a model, on an operator's word?"""
        return self._sleep.state.is_parked

    def handle(self, message: Sleep | WakeUp | Parked) -> bool:
        """One message; it may come twice. True if the worker is not to be reckoned with any more."""
        match message:
            case Sleep():
                return self._begin(message)
            case WakeUp():
                self._sleep.wake(Part(message.parts), message.call)
                self._context.log.info("it is woken; still asleep: %s", self._sleep.state.asleep.name)
                self._tell_workers(LookAtSleep())
            case Parked():
                if message.level == self._sleep.state.level:
                    self._sleep.parked.add(message.rank)
        return False

    def _begin(self, message: Sleep) -> bool:
        scheduler = self._scheduler
        if self._sleep.is_asked_by(message.call):
            return False
        if message.mode == "abort":
            for ref in list(scheduler.sequences):
                scheduler.end(ref, Finish.ABORT)
        wanted = SleepState(message.level, refuses=message.refuses, wait_s=message.wait_s)
        if message.mode == "wait":
            self._sleep.drain(message.call, wanted)
            if self._sleep.state.draining:
                self._context.log.info("it sleeps once what has begun has ended: %d requests", len(scheduler.sequences))
                return False
        return self._fall_asleep(wanted, [message.call] if message.mode != "wait" else [])

    def _fall_asleep(self, wanted: SleepState, calls: list[int]) -> bool:
        """The word first: whoever dies behind it has a successor that sleeps."""
        self._sleep.fall_asleep(wanted, calls)
        self._context.log.info("it sleeps (level %d): %d requests", wanted.level, len(self._scheduler.sequences))
        self._tell_workers(LookAtSleep())
        return True

    def turn(self, has_worker: bool) -> tuple[bool, int]:
        """(whether it has fallen asleep now, how much was done): what has begun has ended, or workers are parked."""
        sleep, scheduler = self._sleep, self._scheduler
        fell = sleep.drained(len(scheduler.batch), scheduler.waiting) and self._fall_asleep(sleep.state, [])
        calls = sleep.answers(self._workers, has_worker)
        for call in calls:
            self._context.post(f"frontend-{frontend_of_call(call)}", SleepChanged(call))
        return fell, len(calls) + fell
