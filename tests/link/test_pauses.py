"""Pauses of an engine elsewhere: when they hold, whether it is there or away, and what ends them."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.engines.draining import Draining
from actorserve.actors.link import administration as module
from actorserve.actors.protocol.topics import administration as topics
from actorserve.shm.kv_map.layout import kv_map_bytes
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.pause import PauseState

from .administration import CALL, SIZES, Bench, state_of


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
