"""Batches by OpenAI's own client on a whole server: answered line by line, whoever dies meanwhile; limits of keys, and
several servers on one folder.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.client import http_client
from tests.support.server import WAIT_S, Server
from tests.support.until import until as wait_until

ENDED = ("completed", "failed", "expired", "cancelled")
OPTIONS = ("--threads", "1", "--max-restarts", "1000", "--log-level", "info")
MANY = 200
FEW = 12  # for each that dies: with two at once and LONG, more than are done between two looks
LONG = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
MODEL = "actorserve-demo"
PAUSE_S = 0.05  # between two looks of a client, who has no other way to see how far a batch is


def body(number: int) -> dict[str, Any]:
    return {"prompt": f"The capital of {number} is", "max_tokens": 6 + number % 5, "temperature": 0}


def lines(bodies: dict[str, dict[str, Any]], url: str = "/v1/completions") -> bytes:
    asked = [{"custom_id": name, "method": "POST", "url": url, "body": one} for name, one in bodies.items()]
    return "".join(json.dumps(one) + "\n" for one in asked).encode()


def begin(client: OpenAI, content: bytes, endpoint: Any = "/v1/completions", **fields: Any) -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": endpoint, "completion_window": "24h"}
    return client.batches.create(**(asked | fields))


def until(client: OpenAI, batch: Any, reached: Callable[[Any], bool]) -> Any:
    over = threading.Event()
    for _ in range(int(2 * WAIT_S / PAUSE_S)):
        if reached(found := client.batches.retrieve(batch.id)):
            return found
        over.wait(PAUSE_S)
    raise AssertionError(f"not reached: {found}")


def until_answered(client: OpenAI, batch: Any, least: int) -> Any:
    return until(client, batch, lambda found: found.request_counts.completed >= least)


def ended(client: OpenAI, batch: Any) -> Any:
    return until(client, batch, lambda found: found.status in ENDED)


def answers(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """By their custom_ids: each line is answered once."""
    if file_id is None:
        return {}
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def texts(client: OpenAI, file_id: str | None) -> dict[str, str]:
    return {name: one["response"]["body"]["choices"][0]["text"] for name, one in answers(client, file_id).items()}


def client_of(server: Server, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("files")
    options = ("--files-dir", str(folder / "new"), "--frontends", "2", "--max-batch-lines", "2")
    with Server(*OPTIONS, *options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as made:
        yield made


def test_a_batch_is_answered(client: OpenAI) -> None:
    bad = {"prompt": "x", "temperature": "warm"}
    batch = ended(client, begin(client, lines({"a": body(1), "b": body(2), "bad": bad}), metadata={"job": "x"}))
    assert batch.status == "completed" and batch.metadata == {"job": "x"}
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 2, 1)
    alone = {
        name: client.completions.create(model=MODEL, **body(number)).choices[0].text
        for name, number in (("a", 1), ("b", 2))
    }
    assert texts(client, batch.output_file_id) == alone
    (error,) = answers(client, batch.error_file_id).values()
    assert error["response"]["status_code"] == 400 and error["response"]["body"]["error"]["param"] == "temperature"
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "model": "actorserve-demo"},
        ),
    ],
)
def test_other_endpoints_are_asked(client: OpenAI, endpoint: str, asked: dict[str, Any]) -> None:
    batch = ended(client, begin(client, lines({"a": asked}, endpoint), endpoint))
    (answer,) = answers(client, batch.output_file_id or batch.error_file_id).values()
    assert answer["response"]["status_code"] == 200, answer


def test_a_job_of_mistrals_is_answered(server: Server, client: OpenAI) -> None:
    requests = [{"custom_id": name, "body": body(number)} for name, number in (("a", 1), ("b", 2))]
    requests.append({"custom_id": "bad", "body": {"prompt": "x", "temperature": "warm"}})
    with http_client(server) as http:
        asked = {"endpoint": "/v1/completions", "requests": requests, "model": MODEL}
        job = http.post("/v1/batch/jobs", json=asked).json()
        path = f"/v1/batch/jobs/{job['id']}?inline=true"
        wait_until(lambda: http.get(path).json()["status"] == "SUCCESS")
        job = http.get(path).json()
    assert (job["succeeded_requests"], job["failed_requests"]) == (2, 1)
    answered = {line["custom_id"]: line["response"] for line in job["outputs"]}
    assert {name: one["status_code"] for name, one in answered.items()} == {"a": 200, "b": 200, "bad": 400}
    alone = client.completions.create(model=MODEL, **body(1)).choices[0].text
    assert texts(client, job["output_file"])["a"] == alone == answered["a"]["body"]["choices"][0]["text"]


def test_a_file_that_is_none_is_told_by_its_lines(client: OpenAI) -> None:
    batch = ended(client, begin(client, lines({"a": body(1)}) + b"{\n" + lines({"a": body(2)})))
    assert batch.status == "failed" and batch.failed_at is not None and batch.output_file_id is None
    assert [(one.code, one.line) for one in batch.errors.data] == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]


def test_a_model_that_is_not_there_fails_before_any_line_is_asked(client: OpenAI) -> None:
    batch = ended(client, begin(client, lines({"a": body(1) | {"model": "none"}, "b": body(2) | {"model": "none"}})))
    assert batch.status == "failed" and batch.output_file_id is None is batch.error_file_id
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == ("model_not_found", 1, "body.model") and "`none`" in error.message
    named = ended(client, begin(client, lines({"a": body(1) | {"model": MODEL}})))
    assert named.status == "completed"


@pytest.mark.parametrize(
    "names", [("batcher",), ("frontend-0", "frontend-1"), ("worker",), ("batcher", "worker", "frontend-0")]
)
def test_each_line_is_answered_once_whoever_dies(server: Server, client: OpenAI, names: tuple[str, ...]) -> None:
    """With the text that it has alone; each dies when lines were answered, and others are not yet."""
    bodies = {f"r{number}": LONG | {"prompt": f"{number} is"} for number in range(FEW * len(names))}
    alone = ended(client, begin(client, lines(bodies)))
    batch = begin(client, lines(bodies))
    answered = 0
    for name in names:
        answered = until_answered(client, batch, answered + 1).request_counts.completed
        assert client.batches.retrieve(batch.id).status == "in_progress"
        server.replace(name)
    found = ended(client, batch)
    assert found.status == "completed" and found.request_counts.completed == len(bodies)
    assert texts(client, found.output_file_id) == texts(client, alone.output_file_id)
    assert found.error_file_id is None


def test_a_batch_is_cancelled(client: OpenAI) -> None:
    bodies = {f"r{number}": body(number) | {"max_tokens": 40} for number in range(MANY)}
    batch = begin(client, lines(bodies))
    until(client, batch, lambda found: found.status == "in_progress")
    assert client.batches.cancel(batch.id).status == "cancelling"
    found = ended(client, batch)
    assert found.status == "cancelled" and found.cancelled_at is not None
    assert len(answers(client, found.output_file_id)) == found.request_counts.completed < MANY
    assert client.batches.cancel(batch.id) == found  # sent again


def test_it_is_counted_and_shown(server: Server, client: OpenAI) -> None:
    ended(client, begin(client, lines({"a": body(1)})))
    metrics = openai.DefaultHttpxClient().get(f"{server.base_url}/metrics").text
    counted = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("actorserve:batch"))
    found = {name.partition("{")[0]: float(value) for name, value in counted.items()}
    assert found["actorserve:batches_completed_total"] >= 1 and found["actorserve:batch_lines_completed_total"] >= 1
    assert found["actorserve:batches_running"] == 0 == found["actorserve:batches_waiting"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_goes_on_at_the_next_start_and_keys_hold(tmp_path: Path, number: signal.Signals) -> None:
    """Of the whole server; its files are their owner's there, too, and by another server on this folder."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: ann, key: a-key-of-ann}, {name: bob, key: a-key-of-bob}]\n")
    options = (*OPTIONS, "--files-dir", str(tmp_path / "files"), "--key-file", str(keys), "--max-batch-lines", "2")
    bodies = {f"r{number}": body(number) for number in range(MANY // 4)}
    with Server(*options) as first, client_of(first, "a-key-of-ann") as ann, client_of(first, "a-key-of-bob") as bob:
        batch = begin(ann, lines(bodies))
        until_answered(ann, batch, 1)
        assert bob.batches.list().data == [] and bob.files.list().data == []
        first.signal(number)
        first.wait()
        first.check_nothing_left()
    with Server(*options) as second, Server(*options) as third:
        with client_of(third, "a-key-of-ann") as ann, client_of(second, "a-key-of-bob") as bob:
            found = ended(ann, batch)
            assert found.status == "completed" and texts(ann, found.output_file_id).keys() == bodies.keys()
            for ask in (bob.files.retrieve, bob.files.content):
                with pytest.raises(openai.NotFoundError):
                    ask(found.output_file_id)
        for server in (second, third):
            server.stop()
            (told,) = [line for line in server.read_all().splitlines() if "batcher ended" in line]
            assert "exit status 0" in told


def test_lines_count_as_requests_of_their_owner(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: ann, key: a-key-of-ann, budget: 40}]\n")
    options = (*OPTIONS, "--files-dir", str(tmp_path / "files"), "--key-file", str(keys), "--max-batch-lines", "1")
    with Server(*options) as server, client_of(server, "a-key-of-ann") as client:
        found = ended(client, begin(client, lines({f"r{number}": body(number) for number in range(8)})))
        refused = answers(client, found.error_file_id)
        assert found.status == "completed" and found.request_counts.completed and refused
        assert {one["response"]["status_code"] for one in refused.values()} == {429}
