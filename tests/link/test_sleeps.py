"""Sleeps of an engine elsewhere: when it is told to, whether it is there or away, and what ends them."""

from __future__ import annotations

import pytest

from actorserve.actors.link import administration as module
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.protocol.topics import administration as topics
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.kv_map.sleep import Part, SleepState

from .administration import CALL, Bench, state_of

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
