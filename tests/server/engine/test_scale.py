"""Engines that there is room for come and go under load, and nobody waits for one that is parked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.observer.attach import attach
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.telemetry.snapshot import Snapshot
from tests.support.client import http_client
from tests.support.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ("--worker", "scripted", "--scripted-step-ms", "5", "--max-data-parallel-size", "3")
    with Server(*options, "--debug", "--max-restarts", "100", "--admin-api-key", "root") as made:
        yield made


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data_parallel_size": 3}, "--max-data-parallel-size 2: must be at least --data-parallel-size, which is 3"),
        ({"data_parallel_size": 2, "data_parallel_rank": 1}, "this server is one engine of several"),
        ({"record": "/tmp/recorded"}, "--record: it keeps what one scheduler acts on, and there are several engines"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config({"max_data_parallel_size": 2, **given})


def look(server: Server) -> Snapshot:
    attached = attach(server.pid)
    try:
        return attached.look()
    finally:
        attached.close()


def test_engines_that_are_not_wanted_yet_are_parked_and_nobody_misses_them(server: Server) -> None:
    states = {actor.name: (actor.state, actor.parked, actor.pid is None) for actor in look(server).actors}
    assert [states[f"worker@{engine}"][0] for engine in range(3)] == ["ready", "parked", "parked"]
    assert states["worker@1"] == ("parked", "scale", True) and states["scheduler@1"][0] == "ready"
    with http_client(server) as client:
        assert client.get("/ready").json() == {"status": "ready"}
        for rank in range(3):
            body = {"prompt": "There", "max_tokens": 3, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)})
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
        text = client.get("/metrics").text
    assert [f'actorserve:actor_parked{{actor="worker@{one}"}} {value}' in text for one, value in enumerate("011")]
    assert server.pids().keys() >= {"worker@0", "scheduler@2"} and "worker@1" not in server.pids()
