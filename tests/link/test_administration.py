"""What operators ask of an engine elsewhere: who is told what while it is away, and what it is told when it comes."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.link import administration as module
from actorserve.actors.link.open_calls import MOST_CALLS
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.protocol.topics import administration as topics
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.kv_map.sleep import Part
from actorserve.shm.weights import WeightsRecord

from .administration import CALL, Bench, state_of


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
