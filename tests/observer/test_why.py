"""`actorserve why` against a real server, while the actor that has the request is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import requests

from actorserve.actors.cli import main
from actorserve.actors.observer.attach import attach
from actorserve.actors.observer.requests import Requests
from actorserve.actors.observer.why.explanation import Explanation, explain
from actorserve.actors.observer.why.scene import take_scene
from actorserve.actors.protocol.messages import Finish
from actorserve.shm.table.stamps import Stamp
from tests.support.server import Server
from tests.support.until import until

from .commands import HEADERS, port_of, run
from .test_ps import stopped

BODY: dict[str, Any] = {"model": "actorserve-demo", "prompt": "Hello there", "max_tokens": 8, "ignore_eos": True}
ORDER = [
    "queued to a renderer",
    "rendering",
    "queued to the scheduler",
    "waiting for its first step",
    "prefill",
    "decode",
]


def ask(server: Server, name: str, **fields: Any) -> requests.Response:
    headers = {**HEADERS, "X-Request-Id": name}
    return requests.post(f"{server.base_url}/v1/completions", json=BODY | fields, headers=headers, timeout=60)


@contextmanager
def asking(server: Server, name: str, **fields: Any) -> Iterator[Callable[[], None]]:
    """What makes the request, which is answered well behind it."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server, name, **fields).status_code))
    yield thread.start
    thread.join()
    assert answers == [200]


def look(server: Server, name: str) -> list[Explanation]:
    """The same without a process of its own."""
    observed = attach(pid=server.pid)
    try:
        found = Requests(observed)
        scene = take_scene(observed.system, observed.look(), found.all())
        return [explain(scene, facts) for facts in found.find(name, scene.everything)]
    finally:
        observed.close()


def told(server: Server, *arguments: str) -> list[dict[str, Any]]:
    """What `why --json` says."""
    done = run("why", "--json", "--server", port_of(server), *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def until_at(server: Server, name: str, where: str) -> None:
    until(lambda: [answer.where for answer in look(server, name)][:1] == [where])


@pytest.mark.parametrize(
    ("actor", "where", "stages"),
    [
        ("renderer-0", "queued to a renderer", 1),
        ("scheduler", "queued to the scheduler", 3),
        ("worker", "prefill", 5),
        ("detokenizer-0", "telling its end", 7),
    ],
)
def test_it_waits_for_who_is_stopped(server: Server, actor: str, where: str, stages: int) -> None:
    name = f"while {actor} stands still"
    with asking(server, name) as begin, stopped(server.pids()[actor]):
        begin()
        until_at(server, name, where)
        (answer,) = told(server, name)
        assert answer["where"] == where and (answer["ended"] is None) == (where != "telling its end")
        assert any(f"{actor}, which is stopped" in reason for reason in answer["waits_for"])
        assert [stage["name"] for stage in answer["stages"]] == [*ORDER, "telling its end"][:stages]
        assert [stage["over"] for stage in answer["stages"]] == [True] * (stages - 1) + [False]
        assert sum(stage["seconds"] for stage in answer["stages"]) == pytest.approx(answer["age_s"], abs=0.005)
        listed = run("why", "--list", "--server", port_of(server)).stdout
        assert [line for line in listed.splitlines() if name in line and where in line]
        if actor == "detokenizer-0":
            assert answer["generated_tokens"] == answer["text_lag_tokens"] == 8
    until(lambda: [one.where for one in look(server, name)] == ["ended"])
    assert name not in run("why", "--list", "--server", port_of(server)).stdout


def test_a_stream_in_decode(server: Server) -> None:
    name = "in decode"
    with asking(server, name, max_tokens=200, stream=True) as begin:
        begin()
        until(lambda: [one.generated_tokens > 20 for one in look(server, name)] == [True])
        with stopped(server.pids()["worker"]):
            (answer,) = told(server, name)
            assert answer["where"] == "decode" and answer["waits_for"][0].startswith("worker, which is stopped")
            assert 20 < answer["generated_tokens"] < answer["limit"] == 200 and answer["tokens_s"] > 0
            words = run("why", name, "--server", port_of(server)).stdout
            assert f"{answer['generated_tokens']} of at most 200 generated" in words


def test_a_detokenizer_that_is_behind(server: Server) -> None:
    name = "behind"
    with asking(server, name, max_tokens=200, stream=True) as begin, stopped(server.pids()["detokenizer-0"]):
        begin()
        until(lambda: [one.generated_tokens > 20 for one in look(server, name)] == [True])
        (answer,) = told(server, name)
        assert answer["text_lag_tokens"] > 20
        assert any("tokens: detokenizer-0, which is stopped" in reason for reason in answer["waits_for"])


def test_a_frontend_that_is_stopped(server: Server) -> None:
    name = "its frontend is stopped"
    with asking(server, name, max_tokens=300, stream=True) as begin:
        begin()
        until(lambda: [one.generated_tokens > 5 for one in look(server, name)] == [True])
        with stopped(server.pids()["frontend-0"]):
            until(lambda: [one.where for one in look(server, name)] == ["telling its end"])
            (answer,) = told(server, name)
            assert any("frontend-0, which is stopped" in reason for reason in answer["waits_for"])
            assert answer["text_lag_tokens"] == 0


def test_a_client_that_reads_too_slowly(server: Server) -> None:
    name, host = "slow", server.base_url.removeprefix("http://").split(":")
    big = BODY | {"stream": True, "max_tokens": 1000, "logprobs": 5, "n": 8}
    data = json.dumps(big).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host[0], int(host[1])))
        fields = [f"{key}: {value}" for key, value in HEADERS.items()] + [
            f"X-Request-Id: {name}",
            f"Content-Length: {len(data)}",
        ]
        head = "\r\n".join(
            ["POST /v1/completions HTTP/1.1", f"Host: {host[0]}", "Content-Type: application/json", *fields]
        )
        client.sendall(head.encode() + b"\r\n\r\n" + data)
        until(lambda: [one for one in look(server, name) if one.client_slow_s is not None] != [])
        answer = told(server, name)[0]
        assert answer["client_slow_s"] > 0
        if answer["where"] != "ended":
            assert any("its client, which reads too slowly" in reason for reason in answer["waits_for"])
    until(lambda: all(one.where == "ended" and one.client_slow_s is None for one in look(server, name)))


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses", "messages"])
def test_it_is_found_by_the_id_that_its_client_was_given(server: Server, path: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "Hi", "max_tokens": 4},
        "responses": {"input": "Hi", "max_output_tokens": 16},
    }
    body: dict[str, Any] = (
        {"model": "actorserve-demo", "max_tokens": 4} if path != "responses" else {"model": "actorserve-demo"}
    )
    body |= given.get(path, {"messages": [{"role": "user", "content": "Hi"}]})
    answer = requests.post(f"{server.base_url}/v1/{path}", json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text
    name, header = answer.json()["id"], answer.headers["X-Request-Id"]
    (found,) = told(server, name)
    assert found["request_id"] == header and found["where"] == "ended"
    for other in (header, hex(found["ref"]), str(found["slot"])):
        assert told(server, other)[0]["ref"] == found["ref"]
    assert [stage["name"] for stage in found["stages"]] == [*ORDER, "telling its end"]


def test_all_choices_are_told(server: Server) -> None:
    assert ask(server, "of four", n=4).status_code == 200
    found = told(server, "of four")
    assert len({one["slot"] for one in found}) == len(found) == 4
    assert [one["generated_tokens"] for one in found] == [8] * 4
    assert {one["ended"] for one in found} == {"it reached its length"}
    assert run("why", "of four", "--server", port_of(server)).stdout.count("of four · slot") == 4


def test_one_that_was_refused(server: Server) -> None:
    assert ask(server, "refused", structured_outputs={"regex": "("}).status_code == 400
    until_at(server, "refused", "ended")
    (found,) = told(server, "refused")
    assert found["ended"] == "its prompt was refused, or could not be rendered" and found["waits_for"] == []


def test_one_whose_client_went_away(server: Server) -> None:
    url = f"{server.base_url}/v1/completions"
    headers = {**HEADERS, "X-Request-Id": "gone"}
    with requests.post(
        url, json=BODY | {"stream": True, "max_tokens": 1000}, headers=headers, stream=True, timeout=60
    ) as answer:
        next(answer.iter_content(1))
    until_at(server, "gone", "ended")
    assert told(server, "gone")[0]["ended"] == "its client went away"


def test_an_unknown_one(server: Server) -> None:
    for name in ("nobody", "cmpl-" + 24 * "0", "999999999"):
        done = run("why", name, "--server", port_of(server))
        assert done.returncode == 1 and done.stdout == ""
        assert f"error: no request {name!r} is known" in done.stderr


@pytest.mark.parametrize("arguments", [["why"], ["why", "it", "--list"]])
def test_what_is_wanted_must_be_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "name a request, or give --list" in capsys.readouterr().err


def test_deaths_that_it_survived() -> None:
    with Server("--worker", "scripted", "--scripted-step-ms", "20") as server:
        url, headers = f"{server.base_url}/v1/completions", {"X-Request-Id": "twice"}
        body: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True, "stream": True}
        with requests.post(url, json=body, headers=headers, stream=True, timeout=60):
            for actor in ("worker", "scheduler"):
                before = look(server, "twice")[0].deaths if look(server, "twice") else 0
                until(lambda: [one.where for one in look(server, "twice")] == ["decode"])
                os.kill(server.pids()[actor], signal.SIGKILL)
                until(lambda before=before: look(server, "twice")[0].deaths > before)  # type: ignore[misc]
            found = look(server, "twice")[0]
            assert found.deaths == 2 and [one.actor for one in found.replaced] == ["worker", "scheduler"]
            assert found.ended is None


def test_the_queue_waits_for_a_row() -> None:
    with (
        Server("--worker", "scripted", "--max-num-seqs", "2", "--step-timeout", "300") as server,
        asking(server, "five", n=5) as begin,
        stopped(server.pids()["worker"]),
    ):
        begin()
        until(lambda: [one.where for one in look(server, "five")].count("prefill") == 2)
        third, fourth, fifth = look(server, "five")[2:]
        assert third.where == fourth.where == fifth.where == "waiting for its first step"
        assert [(one.queue_place, one.queue_length) for one in (third, fourth, fifth)] == [(1, 3), (2, 3), (3, 3)]
        stopped_worker, reason = third.waits_for
        assert stopped_worker.startswith("worker, which is stopped")
        assert reason == "a row: all 2 of --max-num-seqs are taken"
        assert fifth.waits_for[1] == f"2 before it, the first of which waits for {reason}"


@pytest.mark.parametrize(
    ("free", "reason"),
    [(2, "KV blocks: up to 3 are needed, 2 of 10 are free"), (3, "a step with room: one computes 1024 tokens at most")],
)
def test_the_queue_waits_for_blocks_or_budget(server: Server, free: int, reason: str) -> None:
    """As the scheduler of this server might be, were it so short of blocks."""
    assert ask(server, "to be changed").status_code == 200
    observed = attach(pid=server.pid)
    found = Requests(observed).find("to be changed", Requests(observed).all())[0]
    begun = (Stamp.RENDER_BEGUN, Stamp.RENDERED, Stamp.ADMITTED)
    life = replace(found.life, at={stamp: found.life.at[stamp] for stamp in begun})
    waits = replace(found, prompt=90, generated=0, finish=Finish.NONE, held=0, life=life)
    snapshot = observed.look()
    gauges = {**snapshot.actor("scheduler").gauges, "blocks_total": 10, "blocks_free": free}
    actors = [
        msgspec.structs.replace(actor, gauges=gauges) if actor.name == "scheduler" else actor
        for actor in snapshot.actors
    ]
    scene = take_scene(observed.system, msgspec.structs.replace(snapshot, actors=actors), [waits])
    assert explain(scene, waits).waits_for == [reason]
    observed.close()
