"""Message batches by Anthropic's own client on a whole server: each request has a result, whoever dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.support.server import WAIT_S, Server

OPTIONS = ("--threads", "1", "--max-restarts", "1000", "--log-level", "info", "--frontends", "2")
MODEL = "actorserve-demo"
MANY = 200
FEW = 12  # for each that dies
PAUSE_S = 0.05  # between two looks of a client, who has no other way to see how far a batch is


def params(number: int, tokens: int = 8) -> Any:
    asked = [{"role": "user", "content": f"What is the capital of {number}?"}]
    return {"model": MODEL, "max_tokens": tokens, "temperature": 0, "messages": asked}


def alone(client: Anthropic, number: int) -> Any:
    """By a request of its own; the client's method has no temperature."""
    own = params(number)
    return client.messages.create(extra_body={"temperature": own.pop("temperature")}, **own).content


def long(number: int) -> Any:
    return params(number, 200) | {"ignore_eos": True}


def begin(client: Anthropic, asked: dict[str, Any]) -> Any:
    return client.messages.batches.create(requests=[{"custom_id": name, "params": one} for name, one in asked.items()])


def until(client: Anthropic, batch: Any, reached: Callable[[Any], bool]) -> Any:
    over = threading.Event()
    for _ in range(int(2 * WAIT_S / PAUSE_S)):
        if reached(found := client.messages.batches.retrieve(batch.id)):
            return found
        over.wait(PAUSE_S)
    raise AssertionError(f"not reached: {found}")


def ended(client: Anthropic, batch: Any) -> Any:
    return until(client, batch, lambda found: found.processing_status == "ended")


def results(client: Anthropic, batch: Any) -> dict[str, Any]:
    """By their custom_ids: each request has one."""
    found = list(client.messages.batches.results(batch.id))
    assert len({one.custom_id for one in found}) == len(found)
    return {one.custom_id: one.result for one in found}


def texts(client: Anthropic, batch: Any) -> dict[str, str]:
    return {name: one.message.content[0].text for name, one in results(client, batch).items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("files")
    with Server(*OPTIONS, "--files-dir", str(folder), "--max-batch-lines", "2") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.base_url, api_key="-", max_retries=0) as made:
        yield made


def test_a_batch_is_answered_and_removed(client: Anthropic) -> None:
    others = {"cold": params(1) | {"temperature": 7}, "none": params(1) | {"model": "none"}}
    others["stream"] = params(1) | {"stream": True}
    batch = begin(client, {"a": params(1), "b": params(2)} | others)
    assert batch.processing_status == "in_progress"
    found = ended(client, batch)
    counts = found.request_counts
    assert (counts.succeeded, counts.errored, counts.processing, counts.canceled) == (2, 3, 0, 0)
    read = results(client, batch)
    assert [read[name].message.content for name in "ab"] == [alone(client, number) for number in (1, 2)]
    errors = {name: read[name].error.error for name in others}
    assert "temperature" in errors["cold"].message and errors["none"].type == "not_found_error"
    assert "stream" in errors["stream"].message
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


@pytest.mark.parametrize("names", [("batcher",), ("batcher", "worker", "frontend-0", "frontend-1")])
def test_each_has_its_result_whoever_dies(server: Server, client: Anthropic, names: tuple[str, ...]) -> None:
    """With the text that it has alone; each dies when requests were answered, and others are not yet."""
    asked = {f"r{number}": long(number) for number in range(FEW * len(names))}
    undisturbed = ended(client, begin(client, asked))
    batch = begin(client, asked)
    answered = 0
    for name in names:
        reached = answered + 1
        found = until(client, batch, lambda found, least=reached: found.request_counts.succeeded >= least)  # type: ignore[misc]
        assert found.processing_status == "in_progress"
        answered = found.request_counts.succeeded
        server.replace(name)
    found = ended(client, batch)
    assert found.request_counts.succeeded == len(asked) and texts(client, batch) == texts(client, undisturbed)


def test_a_batch_is_cancelled(client: Anthropic) -> None:
    batch = begin(client, {f"r{number}": params(number, 40) for number in range(MANY)})
    until(client, batch, lambda found: found.request_counts.succeeded)
    assert client.messages.batches.cancel(batch.id).processing_status == "canceling"
    found = ended(client, batch)
    kinds = [one.type for one in results(client, batch).values()]
    assert len(kinds) == MANY and set(kinds) == {"succeeded", "canceled"}
    assert kinds.count("canceled") == found.request_counts.canceled
    assert client.messages.batches.cancel(batch.id) == found  # sent again
