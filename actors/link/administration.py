"""What operators ask of an engine elsewhere: it is sent there, and answered in time, with the engine's name if it is
not there.

Of deaths: the link keeps what it was asked in its own memory alone. Its successor, whom a frontend asks again, finds in
the KV map's words what is wanted of the engine: whether it is paused, sleeps, and with which weights (shm/weights.py).
These words are stored once the engine has done it, or, of a pause, while it is away. An engine that comes, or comes
back, is told what they say and it does not do: once on a connection, so that two servers that want it otherwise do not
wake and park it for ever.

Of a pause that waits (/pause?mode=wait) an engine is told in two parts, since what has begun in others may still be
given to it: DRAINING, that no more begins; ENDING, what it had begun has ended, as it says, or it is away; PAUSED, so
has all in all engines, and it is told to hold. The next connection begins with the first part anew. A scheduler there
may die, and forget who waits for it: it is asked again. Another pause that holds at once ends the waiting.
Of a sleep that waits it is told likewise; the second part is that it sleeps, and is paused no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.kv_map.sleep import Part, SleepState
from actorserve.shm.weights import WeightsRecord

from ..engines.channel import Channel
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.administration import (
    END,
    Pause,
    Paused,
    Resume,
    Sleep,
    SleepChanged,
    Unanswered,
    WakeUp,
)
from ..protocol.topics.calls import frontend_of_call
from ..runtime.process import Context
from .open_calls import ANSWERS, Call, Open, OpenCalls, waits

ABSENT_S = 10.0  # for so long an engine that is away may come back, and do it
EVERYTHING = int(Part.ALL)


class LinkAdministration:
    """Of one link. `is_parked`: nobody wants the engine, so that there is nothing to ask."""

    def __init__(
        self,
        context: Context,
        kv: KVMap,
        name: str,
        is_parked: Callable[[], bool],
        has_ended: Callable[[], bool],
        others_will: Callable[[], bool],
    ) -> None:
        """`has_ended`: all that has begun in the model's engines? `others_will`: does another engine take what is held
        here, or soon?
        """
        self._context, self._kv, self._name = context, kv, name
        self._is_parked, self._has_ended, self._others_will = is_parked, has_ended, others_will
        self._weights = WeightsRecord(context.files["weights"], context.spec.engine)
        self._open = OpenCalls()
        self._channel: Channel | None = None
        self._lost_at = time.monotonic()
        self._why = "it does not answer"
        self._is_set_right = False  # on this connection it was told what is wanted
        self._wakes = False  # once it sleeps with the weights that are wanted

    # --- the connection ------------------------------------------------------------------------------------------

    def met(self, channel: Channel) -> None:
        """It is there: what was asked stands before what is to be computed behind it."""
        self._channel, self._is_set_right, self._wakes = channel, False, False
        if self._kv.pause.state.drains:
            self._kv.pause.state = PauseState.DRAINING
            channel.send(Pause(0, END, clear_cache=False))
        elif self._kv.pause.state is PauseState.PAUSED:
            channel.send(Pause(0, "keep"))
        elif self._kv.pause.state is PauseState.RESUMING:
            channel.send(Resume(0))
        for one in list(self._open.values()):  # one that cannot be asked is answered at once
            one.told = False
            self._send(channel, one)

    def _send(self, channel: Channel, one: Open) -> None:
        """The first part of what waits, if it is not through with that; a sleep may have to wait for another pause."""
        call = one.call
        if not waits(call):
            self._send_now(channel, call)
        elif isinstance(call, Pause):
            channel.send(msgspec.structs.replace(call, mode=END))
        elif one.told:
            self._send_now(channel, msgspec.structs.replace(call, mode="keep"))
        elif self._kv.pause.state.drains:
            channel.send(Pause(call.call, END, clear_cache=False))

    def _send_now(self, channel: Channel, call: Call) -> None:
        """Weights are compared before they are loaded."""
        if not isinstance(call, Sleep) or call.weights is None:
            channel.send(call)
            return
        try:
            channel.send(wire.LoadWeights(call, wire.weights_digest(call.weights or self._context.model.folder)))
        except OSError as error:
            self._open.pop(call.call, None)
            self._post(Unanswered(call.call, f"path: {call.weights} cannot be read: {error.strerror}.", 400))

    def lost(self, why: str) -> None:
        """It is gone, or not there yet."""
        if self._channel is not None:
            self._lost_at = time.monotonic()
        self._channel, self._why = None, why
        if self._kv.pause.state is PauseState.DRAINING:  # else two that are away wait for each other
            self._kv.pause.state = PauseState.ENDING

    def look(self) -> None:
        """Now and then: who waits for an engine that is away is told so."""
        if self._channel is not None:
            self._look_at_waiting(self._channel)
            return
        now = time.monotonic()
        for number, one in list(self._open.items()):
            is_late = now - max(one.since, self._lost_at) > ABSENT_S
            if self._waits_for_others(one.call, is_late):
                continue
            if self._is_parked() or isinstance(one.call, Pause | Resume):
                self._settle_absent(one.call)
            elif is_late:
                del self._open[number]
                if isinstance(one.call, Sleep):
                    self._drain_no_more()
                self._post(Unanswered(number, self._problem()))

    def _look_at_waiting(self, channel: Channel) -> None:
        """Once all that has begun has ended, in all engines, nothing is planned any more. What sleeps then waits first
        for who has paused it, and drains again where somebody has resumed meanwhile.
        """
        state, sleeps = self._kv.pause.state, self._open.waiting(Sleep)
        if state is PauseState.RUNNING and sleeps:
            self._kv.pause.state = PauseState.DRAINING
            for one in sleeps:
                self._send(channel, one)
        elif state in (PauseState.ENDING, PauseState.PAUSED):
            pauses = self._open.waiting(Pause) if state is PauseState.ENDING else []
            if (pauses or sleeps) and self._has_ended():
                self._hold(channel, pauses, sleeps)

    def _hold(self, channel: Channel, pauses: list[Open], sleeps: list[Open]) -> None:
        is_paused = bool(pauses) or self._kv.pause.state is PauseState.PAUSED
        self._kv.pause.state = PauseState.PAUSED if is_paused else PauseState.RESUMING
        for one in pauses:
            one.told = True
            channel.send(Pause(one.call.call, "keep", clear_cache=False))
        for one in sleeps:
            one.told = True
            self._send(channel, one)
        if not is_paused:
            channel.send(Resume(0))

    def _drain_no_more(self) -> None:
        """Unless somebody waits for it still."""
        if self._kv.pause.state.drains and not any(waits(one.call) for one in self._open.values()):
            self._kv.pause.state = PauseState.RESUMING
            if self._channel is not None:
                self._channel.send(Resume(0))

    def _waits_for_others(self, call: Call, is_late: bool) -> bool:
        """Who holds is given nothing. Where nobody takes what has begun, it stands until somebody resumes."""
        if not waits(call) or self._kv.pause.state is PauseState.PAUSED:
            return False
        return not self._has_ended() and (self._others_will() or not is_late)

    def _problem(self) -> str:
        return f"Engine {self._context.spec.engine} at {self._name} does not answer: {self._why}."

    # --- what is asked -------------------------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """It may be asked again under its number, by whoever is patient."""
        if (known := self._open.get(call.call)) is not None:
            if self._channel is not None and self._may_be_forgotten(known):
                self._send(self._channel, known)
            return
        if isinstance(call, Resume):
            self._end(lambda each: isinstance(each, Pause))  # one that is waited for would hold after all
        elif isinstance(call, WakeUp):
            self._end_sleeps()
        elif waits(call) and not self._kv.pause.state.holds:
            self._kv.pause.state = PauseState.ENDING if self._channel is None else PauseState.DRAINING
        one = self._open.begin(call, time.monotonic())
        if self._channel is not None:
            self._send(self._channel, one)
        else:
            self.look()

    def _may_be_forgotten(self, one: Open) -> bool:
        """Does the scheduler there not know of it any more, if it has died? Weights are compared once."""
        if waits(one.call) and not one.told:
            return self._kv.pause.state is PauseState.DRAINING
        return isinstance(one.call, WakeUp) or (isinstance(one.call, Sleep) and one.call.weights is None)

    def _end(self, are_over: Callable[[Call], bool]) -> None:
        """These are waited for no more."""
        for answer in self._open.end(are_over):
            self._post(answer)

    def _end_sleeps(self) -> None:
        """That wait: another has overtaken them, or somebody wants the engine awake."""
        if any(isinstance(one.call, Sleep) and waits(one.call) for one in self._open.values()):
            self._end(lambda each: isinstance(each, Sleep) and waits(each))
            self._drain_no_more()

    def _settle_absent(self, call: Call) -> None:
        """Of one that is away: nothing is planned there for this server; of one that nobody wants nothing is asked."""
        match call:
            case Pause() | Resume():
                self._kv.pause.state = PauseState.PAUSED if isinstance(call, Pause) else PauseState.RESUMING
            case Sleep() | WakeUp():
                self._store_sleep(call)
        del self._open[call.call]
        if isinstance(call, Sleep):
            self._drain_no_more()
        self._post(ANSWERS[type(call)](call.call))

    def answered(self, answer: wire.Answers) -> None:
        """By the engine. To what this link has asked itself nobody waits for an answer. ValueError if it answers
        something else.
        """
        if not answer.call:
            self._is_done(answer)
            return
        one = self._open.get(answer.call)
        if one is None:
            return
        state, is_waiting = self._kv.pause.state, waits(one.call)
        if is_waiting and state.drains and not one.told and isinstance(answer, Paused | Unanswered):
            self._kv.pause.state = PauseState.ENDING
            return
        if is_waiting and isinstance(one.call, Sleep) and isinstance(answer, Paused):
            return  # it waits no more, since somebody has resumed or holds it, or it has come late
        if not isinstance(answer, (ANSWERS[type(one.call)], Unanswered)):
            raise ValueError(f"a {type(answer).__name__} to a {type(one.call).__name__}")
        del self._open[answer.call]
        match one.call:
            case Pause():
                self._kv.pause.state = PauseState.PAUSED
                # whom it does not answer if this one has overtaken them
                self._end(lambda each: isinstance(each, Pause) and waits(each))
            case Resume():
                self._kv.pause.state = PauseState.RUNNING
            case Sleep() | WakeUp() if isinstance(answer, SleepChanged):
                self._store_sleep(one.call, answer.problem)
                if isinstance(one.call, Sleep):
                    self._end_sleeps()
        self._post(answer)

    def _is_done(self, answer: wire.Answers) -> None:
        """What was asked by this link itself."""
        if self._kv.pause.state is PauseState.RESUMING and isinstance(answer, Paused):
            self._kv.pause.state = PauseState.RUNNING
        elif self._kv.pause.state is PauseState.DRAINING and isinstance(answer, Paused):
            self._kv.pause.state = PauseState.ENDING
        elif isinstance(answer, SleepChanged) and self._wakes and self._channel is not None:
            self._wakes = False
            self._channel.send(WakeUp(0, EVERYTHING))
        elif isinstance(answer, Unanswered):
            self._context.log.error("engine %d at %s: %s", self._engine, self._name, answer.problem)

    def _store_sleep(self, call: Sleep | WakeUp, problem: str = "") -> None:
        """What is wanted of the engine from now on."""
        if isinstance(call, WakeUp):
            asleep = self._kv.sleep.state.asleep & ~Part(call.parts)
            self._kv.sleep.state = self._kv.sleep.state._replace(asleep=asleep) if asleep else SleepState()
            if problem:  # it has loaded those before
                self._weights.store(self._weights.before())
            return
        self._kv.sleep.state = SleepState(call.level, Part.ALL, refuses=call.refuses, wait_s=call.wait_s)
        if call.weights is not None and self._weights.read()[1] != call.weights:
            self._weights.store(call.weights)

    # --- what it says of itself ----------------------------------------------------------------------------------

    def trouble_with(self, engine: wire.Engine) -> str:
        """Why it does not compute for this server, though its workers may live; nothing if it does. What it does
        otherwise than is wanted it is told.
        """
        wanted, weights = self._kv.sleep.state, self._weights.read()[1]
        sleeps = SleepState.unpacked(engine.sleep)
        is_other = weights != engine.weights or (wanted.is_parked and not sleeps.is_on)
        if is_other and not (self._is_set_right or self._asked_to_sleep() or self._channel is None):
            self._set_right(wanted, weights if weights != engine.weights else None)
        if sleeps.is_parked:
            return "it sleeps"
        if weights != engine.weights:
            return f"it has other weights, {engine.weights or 'those of its model'}"
        return "" if engine.worker else "its workers are not up"

    def _asked_to_sleep(self) -> bool:
        return any(isinstance(one.call, Sleep | WakeUp) for one in self._open.values())

    def _set_right(self, wanted: SleepState, weights: str | None) -> None:
        assert self._channel is not None
        self._is_set_right = True
        self._context.log.info("engine %d at %s is told to sleep, or of other weights", self._engine, self._name)
        level = wanted.level or 1
        self._wakes = not wanted.is_parked
        self._send_now(self._channel, Sleep(0, level, "keep", wanted.refuses, wanted.wait_s, weights))

    @property
    def _engine(self) -> int:
        return self._context.spec.engine

    def _post(self, answer: wire.Answers) -> None:
        if answer.call:
            self._context.post(f"frontend-{frontend_of_call(answer.call)}", answer)
