"""Two engines in one server: answers are those of one, whoever dies, and operators see both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actorserve.actors.observer.attach import attach
from actorserve.actors.observer.requests import Requests
from tests.support.client import http_client, metrics_at_rest
from tests.support.selection import slow
from tests.support.server import Server
from tests.support.streams import elsewhere

NAMES = {"scheduler@0", "scheduler@1", "worker@0", "worker@1"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ("--data-parallel-size", "2", "--threads", "1", "--debug", "--max-restarts", "100")
    with Server(*options, "--admin-api-key", "root") as made:
        yield made


async def all_answers(
    server: Server, victims: tuple[str | int, ...] = (), begun: asyncio.Event | None = None
) -> list[list[Any]]:
    """In any engine."""
    return await elsewhere.all_answers(server, None, victims, elsewhere.OF_ANY_SERVER, begun)


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[list[Any]]:
    return asyncio.run(all_answers(server))


@pytest.mark.parametrize(
    "victims",
    [
        ("worker@1",),
        *slow((("worker@0",),), (("worker@0", "worker@1"),)),
        ("scheduler@1",),
        ("worker@0", "scheduler@0"),
    ],
)
def test_a_death_in_an_engine_changes_no_answer(
    server: Server, undisturbed: list[list[Any]], victims: tuple[str, ...]
) -> None:
    """Also where scheduler and worker die together, and where nobody is left to go on for a while."""
    assert asyncio.run(all_answers(server, victims)) == undisturbed
    wait_for_all(server)


def wait_for_all(server: Server) -> None:
    """Until both engines serve."""
    attached = attach(pid=server.pid)
    try:
        while not (seen := attached.look()).ready or not all(
            actor.gauges["blocks_total"] for actor in seen.actors if actor.kind == "scheduler"
        ):
            time.sleep(0.01)  # it is read from shared memory, and nothing tells
    finally:
        attached.close()


def test_who_loses_its_worker_gives_away_before_there_is_another(server: Server, undisturbed: list[list[Any]]) -> None:
    """Without a template there is none for long, however short the last start was."""
    before, pid = len(server.output.splitlines()), server.pids()["worker@1"]
    assert asyncio.run(all_answers(server, ("template-worker", "worker@1"))) == undisturbed
    wait_for_all(server)
    server.wait_for(rf"worker@1 ended \(pid {pid}, ")  # lines of earlier deaths may not have been passed yet
    server.wait_for("worker@1 is up")  # it serves before its line has come
    said = [line for line in server.output.splitlines()[before:] if "worker@1" in line or "scheduler@1" in line]
    given = next(at for at, line in enumerate(said) if "requests go on elsewhere" in line)
    assert given < next(at for at, line in enumerate(said) if "worker@1 is up" in line)


def engines_of(server: Server) -> list[int]:
    """Where the latest requests are or were, in the order of their arrival."""
    attached = attach(pid=server.pid)
    try:
        return [facts.engine for facts in Requests(attached).all()]
    finally:
        attached.close()


@pytest.mark.parametrize("rank", [1, 0])
def test_a_header_pins_a_request_to_an_engine(server: Server, rank: int) -> None:
    body = {"prompt": "Once", "max_tokens": 2, "n": 2}
    with http_client(server) as client:
        for _ in range(3):
            answer = client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)})
            assert answer.status_code == 200, answer.text
            assert engines_of(server)[-2:] == [rank, rank]


@pytest.mark.parametrize("value", ["2", "-1", "one", "", "٣"])
def test_a_header_that_names_no_engine_is_refused(server: Server, value: str) -> None:
    with http_client(server) as client:
        headers = {b"X-data-parallel-rank": value.encode()}
        for path, more in (("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x", "background": True})):
            answer = client.post(path, json={**more}, headers=headers)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"] == "X-data-parallel-rank" and "between 0 and 1" in error["message"]


def samples(server: Server, name: str) -> dict[str, float]:
    """By engine."""
    with http_client(server) as client:
        text = metrics_at_rest(client)
    found = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
    return {one.labels["engine"]: one.value for one in found}


def test_prefixes_and_their_reset_in_all_engines(server: Server) -> None:
    """A prompt goes where its prefix is; after the reset it is nowhere."""
    prompts = ["".join(f"{number} and {step}, " for step in range(40)) for number in range(4)]

    def cached() -> list[int]:
        found = []
        with http_client(server) as client:
            for prompt in prompts:
                answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
                found.append((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            return found

    first = cached()
    assert not any(first) and set(engines_of(server)[-4:]) == {0, 1}, "prompts that nobody knows fill both"
    places = engines_of(server)[-4:]
    assert all(count > 64 for count in cached()) and engines_of(server)[-4:] == places
    with http_client(server) as client:
        headers = {"Authorization": "Bearer root"}
        assert client.post("/reset_prefix_cache", headers=headers).status_code == 200
    assert not any(cached())


def test_operators_see_both(server: Server) -> None:
    with http_client(server) as client:
        assert client.get("/ready").json() == {"status": "ready"}
    assert NAMES < set(server.actors())
    generated = samples(server, "vllm:generation_tokens_total")
    assert set(generated) == {"0", "1"} and min(generated.values()) > 0
    attached = attach(pid=server.pid)
    try:
        seen = attached.look()
        lanes = {(lane.source, lane.target) for lane in seen.lanes}
    finally:
        attached.close()
    assert ("scheduler@0", "worker@0") in lanes and ("scheduler@0", "scheduler@1") in lanes
    assert not {("scheduler@0", "worker@1"), ("worker@1", "scheduler@0"), ("scheduler@1", "scheduler@1")} & lanes
    total = sum(seen.actor(name).gauges["blocks_total"] for name in ("scheduler@0", "scheduler@1"))
    assert seen.sums("scheduler")["blocks_total"] == total > 0
