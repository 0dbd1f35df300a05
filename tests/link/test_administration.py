"""What operators ask of an engine elsewhere: who is told what while it is away, and what it is told when it comes."""

from __future__ import annotations

import logging
import mmap
import time
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.engines.draining import Draining
from actorserve.actors.link import administration as module
from actorserve.actors.link.administration import LinkAdministration
from actorserve.actors.link.open_calls import MOST_CALLS
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.protocol.topics import administration as topics
from actorserve.actors.protocol.topics.calls import call_numbers
from actorserve.shm.kv_map.layout import kv_map_bytes
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.kv_map.sleep import Part, SleepState
from actorserve.shm.weights import WeightsRecord

CALL = next(call_numbers(0, 1))
SIZES = 1, 1, 1  # of a KV map


class Bench:
    """A link's part of it, with what it posts and sends."""

    def __init__(self, kv: KVMap | None = None) -> None:
        self.kv, self.fd = kv or KVMap.private(*SIZES), WeightsRecord.create(2)
        self.posted: list[Any] = []
        self.sent: list[Any] = []
        self.channel: Any = SimpleNamespace(send=self.sent.append)
        self.parked = self.others_will = False
        self.has_ended = True
        self.now = 100.0
        self.made = self.successor()

    def successor(self) -> LinkAdministration:
        context: Any = SimpleNamespace(
            files={"weights": self.fd},
            spec=SimpleNamespace(engine=1),
            log=logging.getLogger("test"),
            post=lambda name, message: self.posted.append(message),
        )
        asked = lambda: self.parked, lambda: self.has_ended, lambda: self.others_will
        return LinkAdministration(context, self.kv, "10.0.0.2:8100", *asked)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    made.made = made.successor()
    return made


def test_an_engine_that_stays_away_is_named_in_time(bench: Bench) -> None:
    bench.made.lost("it differs: --seed")
    bench.made.ask(topics.ResetPrefixCache(CALL))
    bench.made.look()
    assert not bench.posted
    bench.now += 2 * module.ABSENT_S
    bench.made.look()
    problem = "Engine 1 at 10.0.0.2:8100 does not answer: it differs: --seed."
    assert bench.posted == [topics.Unanswered(CALL, problem)]
    bench.made.met(bench.channel)
    assert not bench.sent


def test_what_was_asked_is_said_to_the_next_connection_once(bench: Bench) -> None:
    bench.made.met(bench.channel)
    bench.made.ask(topics.ResetPrefixCache(CALL))
    bench.made.ask(topics.ResetPrefixCache(CALL))  # its frontend asks again
    bench.made.lost("it is gone")
    bench.made.met(bench.channel)
    assert bench.sent == [topics.ResetPrefixCache(CALL)] * 2
    for _ in range(2):
        bench.made.answered(topics.PrefixCacheReset(CALL))
    assert bench.posted == [topics.PrefixCacheReset(CALL)]


def test_one_whose_weights_are_gone_meanwhile_is_told_so_and_the_others_are_asked(bench: Bench) -> None:
    bench.made.ask(topics.Sleep(CALL, 1, "keep", weights="/nowhere/to/be/found"))
    bench.made.ask(topics.ResetPrefixCache(CALL + 1))
    bench.made.met(bench.channel)
    assert bench.sent == [topics.ResetPrefixCache(CALL + 1)]
    (told,) = bench.posted
    assert isinstance(told, topics.Unanswered) and (told.call, told.status) == (CALL, 400)


def test_an_answer_to_something_else_is_none(bench: Bench) -> None:
    bench.made.met(bench.channel)
    bench.made.ask(topics.Pause(CALL))
    with pytest.raises(ValueError, match="a CacheReset to a Pause"):
        bench.made.answered(topics.CacheReset(CALL))
    assert state_of(bench) is PauseState.RUNNING and not bench.posted
    bench.made.answered(topics.Paused(CALL))
    assert state_of(bench) is PauseState.PAUSED and bench.posted == [topics.Paused(CALL)]


def state_of(bench: Bench) -> PauseState:
    return bench.kv.pause.state


def test_a_pause_holds_for_one_that_is_away(bench: Bench) -> None:
    """By its word, which a successor of the link finds, too."""
    bench.made.ask(topics.Pause(CALL, "keep"))
    assert bench.posted.pop() == topics.Paused(CALL)
    assert state_of(bench) is PauseState.PAUSED
    bench.successor().met(bench.channel)
    assert bench.sent.pop() == topics.Pause(0, "keep")
    bench.made.ask(topics.Resume(CALL + 1))
    assert state_of(bench) is PauseState.RESUMING
    other = bench.successor()
    other.met(bench.channel)
    assert bench.sent.pop() == topics.Resume(0)
    other.answered(topics.Paused(0))
    assert state_of(bench) is PauseState.RUNNING


def test_a_pause_that_waits_holds_once_what_was_begun_has_gone_elsewhere(bench: Bench) -> None:
    """Until then others would hold, and be given it."""
    bench.has_ended, bench.others_will = False, True
    bench.made.ask(topics.Pause(CALL, "wait"))
    bench.now += 2 * module.ABSENT_S
    bench.made.look()
    assert not bench.posted and state_of(bench) is PauseState.ENDING
    bench.has_ended = True
    bench.made.look()
    assert bench.posted == [topics.Paused(CALL)] and state_of(bench) is PauseState.PAUSED


def test_a_pause_that_waits_waits_only_for_a_time_where_nobody_takes_what_was_begun(bench: Bench) -> None:
    bench.has_ended = False
    bench.made.ask(topics.Pause(CALL, "wait"))
    bench.now += module.ABSENT_S / 2
    bench.made.look()
    assert not bench.posted, "its engine may come back"
    bench.now += module.ABSENT_S
    bench.made.look()
    assert bench.posted == [topics.Paused(CALL)] and state_of(bench) is PauseState.PAUSED


def test_an_engine_holds_once_what_has_begun_in_all_of_them_has_ended(bench: Bench) -> None:
    """Until then it may be given some, by one whose machine goes; it begins nothing else meanwhile."""
    wanted = topics.Pause(CALL, "wait")
    bench.has_ended = False
    bench.made.met(bench.channel)
    bench.made.ask(wanted)
    ends = topics.Pause(CALL, topics.END)
    assert bench.sent == [ends] and state_of(bench) is PauseState.DRAINING
    bench.made.ask(wanted)  # its scheduler may have died, with those who waited for it
    assert bench.sent == [ends] * 2
    bench.has_ended = True
    bench.made.look()
    assert bench.sent == [ends] * 2, "what it computes without a token nobody sees here"
    bench.has_ended = False
    bench.made.answered(topics.Paused(CALL))
    bench.made.look()
    assert bench.sent == [ends] * 2 and state_of(bench) is PauseState.ENDING and not bench.posted
    bench.has_ended = True
    bench.made.look()
    assert bench.sent.pop() == topics.Pause(CALL, "keep", False) and not bench.posted
    bench.made.answered(topics.Paused(CALL))
    assert bench.posted == [topics.Paused(CALL)] and state_of(bench) is PauseState.PAUSED


def test_an_engine_that_comes_back_while_others_end_begins_nothing(bench: Bench) -> None:
    bench.has_ended = False
    bench.made.met(bench.channel)
    bench.made.ask(topics.Pause(CALL, "wait"))
    bench.made.answered(topics.Paused(CALL))
    bench.sent.clear()
    other = bench.successor()
    other.met(bench.channel)
    assert bench.sent == [topics.Pause(0, topics.END, False)] and state_of(bench) is PauseState.DRAINING
    other.answered(topics.Paused(0))
    assert state_of(bench) is PauseState.ENDING
    other.ask(topics.Pause(CALL, "wait"))  # by its frontend
    bench.has_ended = True
    other.look()
    other.answered(topics.Paused(CALL))
    assert bench.posted == [topics.Paused(CALL)] and state_of(bench) is PauseState.PAUSED


@pytest.mark.parametrize("comes", [False, True])
def test_a_pause_that_waits_is_over_when_somebody_resumes(bench: Bench, comes: bool) -> None:
    """Neither the engine that comes nor what goes elsewhere makes it hold after that."""
    bench.has_ended, bench.others_will = False, True
    bench.made.ask(topics.Pause(CALL, "wait"))
    bench.made.ask(topics.Resume(CALL + 1))
    assert bench.posted == [topics.Paused(CALL), topics.Paused(CALL + 1)]
    if comes:
        bench.made.met(bench.channel)
        assert bench.sent == [topics.Resume(0)]
        bench.made.answered(topics.Paused(0))
        assert state_of(bench) is PauseState.RUNNING
    else:
        bench.has_ended = True
        bench.made.look()
        assert state_of(bench) is PauseState.RESUMING
    assert len(bench.posted) == 2


class Links:
    """Of the engines 1 and 2, beside one of this machine."""

    def __init__(self) -> None:
        size = kv_map_bytes(*SIZES)
        memory, self.offsets = mmap.mmap(-1, 3 * size), [0, size, 2 * size]
        self.maps = [KVMap(memory, offset, *SIZES) for offset in self.offsets]
        self.benches = [Bench(kv) for kv in self.maps[1:]]
        self.draining = [self.draining_of(engine, memory) for engine in range(3)]

    def draining_of(self, engine: int, memory: mmap.mmap) -> Draining:
        context: Any = SimpleNamespace(
            table=SimpleNamespace(slots=0, current_refs=lambda first, end: []),
            spec=SimpleNamespace(engine=engine),
            system=SimpleNamespace(remote_engines=range(1, 3), kv_map_offsets=self.offsets),
            served=SimpleNamespace(engines=range(3)),
            segment=SimpleNamespace(map=memory),
        )
        router: Any = SimpleNamespace(holds=lambda other: self.maps[other].pause.state is PauseState.PAUSED)
        return Draining(context, router)

    def look(self) -> None:
        for bench, draining in zip(self.benches, self.draining[1:], strict=True):
            bench.has_ended, bench.others_will = draining.others_end(), True
            bench.made.look()


@pytest.mark.parametrize("were_there", [False, True])
def test_engines_that_are_away_do_not_wait_for_each_other(were_there: bool) -> None:
    links = Links()
    for bench in links.benches:
        bench.has_ended, bench.others_will = False, True  # who computes here has not heard of it yet
        if were_there:
            bench.made.met(bench.channel)
        bench.made.ask(topics.Pause(CALL, "wait"))
        bench.made.lost("it is gone")
    links.look()
    links.maps[0].pause.state = PauseState.DRAINING
    assert links.draining[0].others_end() and not any(bench.posted for bench in links.benches)
    links.look()
    assert [bench.posted for bench in links.benches] == [[topics.Paused(CALL)]] * 2
    assert [kv.pause.state for kv in links.maps[1:]] == [PauseState.PAUSED] * 2


@pytest.mark.parametrize("is_there", [False, True])
def test_a_pause_that_holds_at_once_ends_one_that_waits(bench: Bench, is_there: bool) -> None:
    """The engine has answered that one, and says no more of it."""
    bench.has_ended, bench.others_will = False, True
    if is_there:
        bench.made.met(bench.channel)
    bench.made.ask(topics.Pause(CALL, "wait"))
    if is_there:
        bench.made.answered(topics.Paused(CALL))
    bench.made.ask(topics.Pause(CALL + 1, "keep"))
    if is_there:
        assert not bench.posted
        bench.made.answered(topics.Paused(CALL + 1))
    bench.made.look()
    assert {answer.call for answer in bench.posted} == {CALL, CALL + 1} and len(bench.posted) == 2
    assert state_of(bench) is PauseState.PAUSED


WAITS = topics.Sleep(CALL, 1, "wait", wait_s=7)
ENDS, SLEEPS = topics.Pause(CALL, topics.END, False), topics.Sleep(CALL, 1, "keep", wait_s=7)


def begin_sleep(bench: Bench) -> None:
    bench.has_ended = False
    bench.made.met(bench.channel)
    bench.made.ask(WAITS)
    assert bench.sent == [ENDS] and state_of(bench) is PauseState.DRAINING


def test_an_engine_sleeps_once_what_has_begun_in_all_of_them_has_ended(bench: Bench) -> None:
    """As with a pause: one that slept before could be given what another's machine had begun."""
    begin_sleep(bench)
    bench.made.ask(WAITS)  # its scheduler may have died, with those who waited for it
    assert bench.sent == [ENDS] * 2
    bench.made.answered(topics.Paused(CALL))
    bench.made.look()
    assert bench.sent == [ENDS] * 2 and state_of(bench) is PauseState.ENDING and not bench.posted
    bench.has_ended = True
    bench.made.look()
    assert bench.sent[2:] == [SLEEPS, topics.Resume(0)]
    bench.made.ask(WAITS)
    assert bench.sent[4:] == [SLEEPS], "it may have died again"
    bench.made.answered(topics.Paused(0))
    assert state_of(bench) is PauseState.RUNNING and not bench.posted
    bench.made.look()
    bench.made.answered(topics.SleepChanged(CALL))
    assert bench.posted == [topics.SleepChanged(CALL)] and len(bench.sent) == 5
    assert bench.kv.sleep.state == SleepState(1, Part.ALL, wait_s=7)


def test_a_sleep_that_waits_is_over_when_somebody_wakes_the_engine(bench: Bench) -> None:
    begin_sleep(bench)
    bench.made.ask(topics.WakeUp(CALL + 1, 3))
    assert bench.posted == [topics.SleepChanged(CALL)]
    assert bench.sent[1:] == [topics.Resume(0), topics.WakeUp(CALL + 1, 3)]
    for answer in (topics.Paused(0), topics.Paused(CALL), topics.SleepChanged(CALL + 1)):
        bench.made.answered(answer)
    bench.made.look()
    assert state_of(bench) is PauseState.RUNNING and bench.kv.sleep.state == SleepState() and len(bench.sent) == 3


def test_a_sleep_that_waits_waits_for_who_has_paused_the_engine(bench: Bench) -> None:
    """What stands in a pause has not ended; once somebody resumes it goes on to its end."""
    bench.kv.pause.state = PauseState.PAUSED
    bench.has_ended = False
    bench.made.met(bench.channel)
    bench.made.ask(WAITS)
    bench.made.look()
    assert bench.sent == [topics.Pause(0, "keep")]
    bench.made.ask(topics.Resume(CALL + 1))
    bench.made.answered(topics.Paused(CALL + 1))
    bench.made.look()
    assert bench.sent[1:] == [topics.Resume(CALL + 1), ENDS] and state_of(bench) is PauseState.DRAINING
    bench.made.ask(topics.Pause(CALL + 2, "keep"))
    bench.made.answered(topics.Paused(CALL + 2))
    bench.has_ended = True
    bench.made.look()
    assert bench.sent[-1] == SLEEPS and state_of(bench) is PauseState.PAUSED, "it is paused when it wakes, too"


@pytest.mark.parametrize("comes", [False, True])
def test_a_sleep_that_waits_for_one_that_is_away(bench: Bench, comes: bool) -> None:
    """Another connection begins with the first part anew; nothing is left of it where there is none."""
    begin_sleep(bench)
    bench.made.answered(topics.Paused(CALL))
    bench.has_ended = True
    bench.made.look()
    bench.made.lost("it is gone")
    bench.sent.clear()
    if comes:
        bench.made.met(bench.channel)
        assert bench.sent == [topics.Resume(0)]
        bench.made.answered(topics.Paused(0))
        bench.made.look()
        assert bench.sent[1:] == [ENDS] and state_of(bench) is PauseState.DRAINING
        return
    bench.now += 2 * module.ABSENT_S
    bench.made.look()
    (told,) = bench.posted
    assert isinstance(told, topics.Unanswered) and not state_of(bench).holds and not bench.kv.sleep.state.is_on


def test_who_waits_for_a_sleep_is_not_forgotten_by_a_scheduler_that_dies(bench: Bench) -> None:
    bench.made.met(bench.channel)
    for wanted in (topics.Sleep(CALL, 1, "keep"), topics.WakeUp(CALL + 1, 3)):
        bench.sent.clear()
        for _ in range(2):
            bench.made.ask(wanted)
        assert bench.sent == [wanted] * 2
        bench.made.answered(topics.SleepChanged(wanted.call))


def test_one_that_comes_while_the_server_sleeps_is_told_to(bench: Bench) -> None:
    bench.made.met(bench.channel)
    bench.made.ask(topics.Sleep(CALL, 2, "keep", refuses=True))
    bench.made.answered(topics.SleepChanged(CALL))
    assert bench.kv.sleep.state == SleepState(2, Part.ALL, refuses=True)
    bench.sent.clear()
    next_life = bench.successor()
    next_life.met(bench.channel)
    for _ in range(2):
        assert next_life.trouble_with(wire.Engine(4, [])) == ""
    assert bench.sent == [topics.Sleep(0, 2, "keep", True)]
    slept = wire.Engine(4, [], sleep=SleepState(2, Part.ALL).packed())
    assert next_life.trouble_with(slept) == "it sleeps"
    assert bench.posted == [topics.SleepChanged(CALL)]


def test_a_machine_that_comes_back_gets_the_weights_of_the_server(bench: Bench, monkeypatch: Any) -> None:
    """It has its own model's; nothing is computed for this server until it has the others."""
    monkeypatch.setattr(wire, "weights_digest", lambda folder: "abc")
    WeightsRecord(bench.fd, 1).store("/weights/new")
    bench.made.met(bench.channel)
    assert "other weights" in bench.made.trouble_with(wire.Engine(4, []))
    sleep = topics.Sleep(0, 1, "keep", False, 0, "/weights/new")
    assert bench.sent == [wire.LoadWeights(sleep, "abc")]
    bench.made.answered(topics.SleepChanged(0))
    assert bench.sent[1:] == [topics.WakeUp(0, int(Part.ALL))]
    bench.made.answered(topics.SleepChanged(0))
    assert not bench.made.trouble_with(wire.Engine(5, [], weights="/weights/new"))
    assert len(bench.sent) == 2
    assert not bench.posted


def test_of_an_engine_that_nobody_wants_nothing_is_asked(bench: Bench) -> None:
    bench.parked = True
    bench.made.ask(topics.CallWorkers(CALL, "model", b""))
    bench.made.ask(topics.ResetEncoderCache(CALL + 1))
    assert [answer.call for answer in bench.posted] == [CALL, CALL + 1]


def test_calls_are_bounded(bench: Bench) -> None:
    for number in range(3 * MOST_CALLS):
        bench.made.ask(topics.ResetPrefixCache(CALL + number))
    bench.made.met(bench.channel)
    assert len(bench.sent) == MOST_CALLS
