"""What operators ask of an engine, beside what they ask of requests (requests.py): its sleep, its weights, calls of its
workers.

Of deaths: all that is asked for is stored first (shm/kv_map/sleep.py), and done whenever it is found there. A
scheduler's successor finds an engine that is to sleep, and lets the workers look; workers look when they start; and an
answer that is lost is asked for again by the frontend (frontend/rpc.py). Which weights are wanted is stored as the
engine falls asleep (shm/weights.py); those that cannot be loaded are taken back. Calls of workers are nowhere but here:
a death is a call without an answer.

An engine that is one more than are wanted has no workers (supervisor/engines/parking.py). What is asked of it is stored
as anywhere else, for those that come, and answered at once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from actorserve.shm.board.board import Parked as WhyParked
from actorserve.shm.kv_map.profile import ProfileWords
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepState, SleepWord
from actorserve.shm.rings.mailbox import wake
from actorserve.shm.weights import LoadProblem, WeightsRecord

from ...protocol.messages import Finish, Message
from ...protocol.topics.administration import (
    CallMethod,
    CallWorkers,
    LookAtSleep,
    MethodCalled,
    Parked,
    Profile,
    Profiled,
    Sleep,
    SleepChanged,
    Unloadable,
    WakeUp,
    WorkersCalled,
)
from ...protocol.topics.calls import frontend_of_call
from ...runtime.process import Context
from ...runtime.profiling import change_profile
from ..scheduler import Scheduler
from .idle import IdleWatch
from .loading import PROBLEM, LoadingDeaths
from .residency import Residency

MOST_CALLS = 64  # of workers at once


class EngineAdministration:
    """Of one scheduler's life."""

    def __init__(
        self, context: Context, scheduler: Scheduler, workers: int, tell_workers: Callable[[Message], None]
    ) -> None:
        self._context, self._scheduler = context, scheduler
        self._workers, self._tell_workers = workers, tell_workers
        self._sleep = scheduler.sleep
        self._weights = WeightsRecord(context.files["weights"], context.spec.engine)
        self._wanted: str | None = None  # weights, once it sleeps
        self._problem = ""  # with the weights that were wanted last
        self._unloadable = LoadProblem(context.files["weights"], context.spec.engine)
        self._calls: dict[int, dict[int, MethodCalled]] = {}  # by rank
        self._held: list[CallMethod] = []  # of these, for workers that are still to be woken
        self._lost: set[int] = set()  # of these, those that another life of the workers was asked
        self._worker = 0  # the life that was met last
        self._profiles = ProfileWords(context.segment.words, context.system.kv_map_offsets[0])
        self._first_worker = context.system.workers_of(context.spec.engine)[0].position
        self._idle = IdleWatch(context, scheduler)
        self._residency = Residency(context)
        self._deaths = LoadingDeaths(context)
        self._wakes: dict[int, WakeUp] = {}  # that wait for a place, by their calls
        if self._sleep.state.is_parked:
            tell_workers(LookAtSleep())

    @property
    def has_no_workers(self) -> bool:
        """Is the engine one more than are wanted?"""
        return WhyParked.SCALE in self._context.board.parked(self._first_worker)

    @property
    def is_parked(self) -> bool:
        """Are its workers without a model, on an operator's word?"""
        return self._sleep.state.is_parked

    @property
    def _waits_to_be_asked(self) -> bool:
        """Does its model sleep until it is asked for, or did before an operator let it sleep?"""
        own = self._sleep.state
        return self._context.config.loads_when_asked and (own.unasked or (own.idle and own.is_parked))

    def handle(self, message: Sleep | WakeUp | Parked | Unloadable | CallWorkers | MethodCalled | Profile) -> bool:
        """One message; it may come twice. True if the worker is not to be reckoned with any more."""
        match message:
            case Sleep():
                return self._begin(message)
            case WakeUp() if self._waits_to_be_asked and not message.loads:
                self._sleep_until_asked(message)
            case WakeUp() if self._residency.is_on and self._sleep.is_asleep:
                self._wakes[message.call] = message
            case WakeUp():
                self._wake(message)
            case Parked():
                if message.level == self._sleep.state.level:
                    self._sleep.parked.add(message.rank)
            case Unloadable():
                return self._cannot_load(message)
            case CallWorkers():
                self._call(message)
            case MethodCalled():
                self._called(message)
            case Profile():
                self._profile(message)
        return False

    def _begin(self, message: Sleep) -> bool:
        scheduler = self._scheduler
        if self._sleep.is_asked_by(message.call):
            return False
        own = self._sleep.state
        is_operators = message.idle and own.is_on and not own.idle  # which /wake_up alone ends
        if not is_operators:
            self._wanted = message.weights
        if message.mode == "abort":
            for ref in list(scheduler.sequences):
                scheduler.end(ref, Finish.ABORT)
        unasked = self._waits_to_be_asked
        wanted = SleepState(message.level, refuses=message.refuses, wait_s=message.wait_s, unasked=unasked)
        if message.idle:
            wanted = own if is_operators else UNTIL_ASKED
            self._idle.forget()
        if message.mode == "wait":
            self._sleep.drain(message.call, wanted)
            if self._sleep.state.draining:
                self._context.log.info("it sleeps once what has begun has ended: %d requests", len(scheduler.sequences))
                return False
            if is_operators:  # as it is: parts of it may have been woken
                return False
        return self._fall_asleep(wanted, [message.call] if message.mode != "wait" else [])

    def _wake(self, message: WakeUp) -> None:
        is_news, was_parked = not self._sleep.is_asked_by(message.call), self.is_parked
        self._sleep.wake(Part(message.parts), message.call)
        if was_parked and not self.is_parked:
            self._deaths.begin()
        if is_news:
            self._context.log.info("it is woken; still asleep: %s", self._sleep.state.asleep.name)
        self._tell_workers(LookAtSleep())

    def _sleep_until_asked(self, message: WakeUp) -> None:
        """As before an operator let it sleep, too: it has no place among those that are loaded. Who says so again is
        answered again.
        """
        if self._sleep.state.unasked and Part.KV in Part(message.parts):
            self._sleep.fall_asleep(UNTIL_ASKED)
            self._idle.forget()
        self._context.post(f"frontend-{frontend_of_call(message.call)}", SleepChanged(message.call))

    def _fall_asleep(self, wanted: SleepState, calls: list[int]) -> bool:
        """The words first: whoever dies behind them has a successor that sleeps."""
        if self._wanted is not None:
            if not (self.is_parked and self._weights.read()[1] == self._wanted):  # said again: `before` stays
                self._weights.store(self._wanted)
            self._wanted, self._problem = None, ""
        self._sleep.fall_asleep(wanted, calls)
        self._context.log.info("it sleeps (level %d): %d requests", wanted.level, len(self._scheduler.sequences))
        self._tell_workers(LookAtSleep())
        return True

    def turn(self, worker: int) -> tuple[bool, int]:
        """(whether it has fallen asleep now, how much was done): what has begun has ended, or workers are parked.
        `worker`: the life that is met; 0: none.
        """
        sleep, scheduler, has_worker = self._sleep, self._scheduler, worker > 0
        if worker not in (0, self._worker):
            self._worker = worker
            self._unloadable.store("")
            self._lost = self._calls.keys() - {call.call for call in self._held}
        drained = sleep.drained(scheduler.is_drained) or self._ends_nowhere()
        fell = drained and self._fall_asleep(sleep.state, [])
        if self._deaths.are_too_many(sleep.state.is_parked, worker):
            fell |= self._sleep_on(PROBLEM)
            has_worker = False
        if self._idle.is_on or sleep.state.idle or self._held or self._residency.is_on:
            fell |= self._turn_idle(has_worker)
        nobody = (sleep.is_waited_for or bool(self._calls)) and self.has_no_workers
        calls = sleep.answers(0 if nobody else self._workers, has_worker or nobody)
        for call in calls:
            self._context.post(f"frontend-{frontend_of_call(call)}", SleepChanged(call, self._problem))
        if calls and has_worker:
            self._problem = ""
        for call in list(self._calls) if nobody else ():
            self._answer_call(call, self._calls.pop(call))
        return fell, len(calls) + fell

    def _turn_idle(self, has_worker: bool) -> bool:
        """Fall asleep where nothing was asked for --sleep-idle-seconds, or to make room, and wake for what is asked."""
        sleep, residency = self._sleep, self._residency
        asked = self._idle.look(not self._calls.keys() <= self._lost, has_worker)
        wants = bool(self._wakes) or (asked and sleep.state.idle and sleep.is_asleep and not self._idle.others_drain())
        if residency.is_on:
            held = not sleep.state.is_parked or len(sleep.parked) < self._workers
            residency.note(asked or bool(self._wakes), wants, held)
        if sleep.state.wakes and has_worker:
            sleep.is_awake()
        elif wants and self._deaths.rests:
            self._refuse(self._unloadable.read())
        elif wants:
            residency.take(self._rouse)
        elif residency.is_on and has_worker and not sleep.state.is_on and residency.is_to_leave():
            sleep.leave(UNTIL_ASKED)
            self._idle.forget()
            self._context.log.info("it sleeps once what has begun has ended: another model is asked for")
            return sleep.drained(self._scheduler.is_drained) and self._fall_asleep(sleep.state, [])
        elif residency.is_on and sleep.leaves_by_itself and not residency.others_wait:
            sleep.is_awake()
            self._context.log.info("it goes on: no other model is asked for any more")
        if not sleep.state.idle:
            self._post_held()
        return self._idle.is_on and self._idle.is_over() and self._fall_asleep(UNTIL_ASKED, [])

    def _rouse(self) -> None:
        """By itself, or as an operator has it who has waited for a place."""
        self._problem = ""
        if not self._wakes:
            self._deaths.begin()
            self._sleep.rouse()
            self._context.log.info("it wakes: something is asked")
            self._tell_workers(LookAtSleep())
        for message in self._wakes.values():
            self._wake(message)
        self._wakes.clear()

    def _ends_nowhere(self) -> bool:
        """Is what has begun here never to end while the engine drains: has it no workers, and no other computes?"""
        if not (self._sleep.state.draining and self.has_no_workers) or self._scheduler.pool.count:
            return False
        context, system = self._context, self._context.system
        others = [engine for engine in context.served.engines if engine != context.spec.engine]
        return all(
            WhyParked.SCALE in context.board.parked(system.workers_of(engine)[0].position)
            or SleepWord(context.segment.map, system.kv_map_offsets[engine]).state.is_parked
            for engine in others
        )

    # --- weights -------------------------------------------------------------------------------------------------

    def _cannot_load(self, message: Unloadable) -> bool:
        """Those before are wanted again, or none; who waits for the engine to wake is told why. As `handle`."""
        generation, folder = self._weights.read()
        one_of_several = len(self._context.system.models) > 1 and not self._sleep.state.is_parked
        if message.generation != generation or not (folder or one_of_several):
            return False
        self._problem = message.problem
        if not folder:
            return self._sleep_on(message.problem)
        self._weights.store(self._weights.before())
        self._context.log.error("the weights before are loaded again: %s", message.problem)
        self._tell_workers(LookAtSleep())
        return False

    def _sleep_on(self, problem: str) -> bool:
        """What the model was loaded for ends, so that its place is free; who asks next has it tried again."""
        self._problem = problem
        self._unloadable.store(problem)
        self._context.log.error("the model sleeps on, as it cannot be loaded: %s", problem)
        self._refuse(problem)
        self._idle.forget()
        if len(self._context.served.engines) > 1:
            self._deaths.rest()  # what its other engines are asked would have it tried each time
        own = self._sleep.state
        return self._fall_asleep(own if own.is_on and not own.idle else UNTIL_ASKED, [])

    def _refuse(self, problem: str) -> None:
        """Who waits for the model is told that it cannot be loaded."""
        scheduler = self._scheduler
        for call in self._wakes:
            self._context.post(f"frontend-{frontend_of_call(call)}", SleepChanged(call, problem))
        self._wakes.clear()
        for ref in list(scheduler.sequences):
            scheduler.end(ref, Finish.UNLOADABLE)
        for call in list(self._calls):
            self._answer_call(call, self._calls.pop(call), problem)
        self._held.clear()
        if scheduler.adapters is not None:
            scheduler.adapters.cannot_read(problem)

    # --- profiles ------------------------------------------------------------------------------------------------

    def _profile(self, message: Profile) -> None:
        """Store it, for all actors to see. A message that comes again finds it begun or ended, and is answered 0."""
        number = change_profile(self._profiles, message.seconds)
        for fd in self._context.eventfds.values():
            wake(fd)
        self._context.post(f"frontend-{frontend_of_call(message.call)}", Profiled(message.call, number))

    # --- calls of workers ----------------------------------------------------------------------------------------

    def _call(self, message: CallWorkers) -> None:
        if len(self._calls) >= MOST_CALLS:
            del self._calls[next(iter(self._calls))]  # nobody waits for it any more, or a worker has died on it
        self._calls[message.call] = {}
        self._lost.discard(message.call)
        self._held = [call for call in self._held if call.call in self._calls]
        self._held.append(CallMethod(message.call, message.method, message.arguments))
        if not self._sleep.state.idle:
            self._post_held()

    def _post_held(self) -> None:
        """There is a worker, or an operator lets it sleep."""
        for call in self._held:
            if call.call in self._calls:
                self._tell_workers(call)
        self._held.clear()

    def _called(self, message: MethodCalled) -> None:
        answers = self._calls.get(message.call)
        if answers is None:
            return
        answers[message.rank] = message
        if len(answers) < self._workers:
            return
        self._answer_call(message.call, self._calls.pop(message.call))

    def _answer_call(self, call: int, answers: dict[int, MethodCalled], problem: str = "") -> None:
        in_order = [answers[rank] for rank in sorted(answers)]
        problem = problem or next((one.problem for one in in_order if one.problem), "")
        answer = WorkersCalled(call, [] if problem else [one.result for one in in_order], problem)
        frontend = f"frontend-{frontend_of_call(call)}"
        size, most = len(msgspec.msgpack.encode(answer)), self._context.outboxes[frontend].max_message
        if size > most:  # each of them has its own bound (worker/methods.py)
            text = f"method: the answers of {len(in_order)} workers have {size} bytes together; {most} are taken"
            answer = WorkersCalled(call, [], text)
        self._context.post(frontend, answer)
