"""Requests that are sent again with their Idempotency-Key, against a running server whose processes die meanwhile."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import connect, http_client, metrics_at_rest
from tests.support.selection import pairwise
from tests.support.server import Server

SERVER_OPTIONS = (
    "--frontends",
    "2",
    "--threads",
    "1",
    "--max-restarts",
    "1000",
    "--idempotent-request-ids",
)
LONG = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "temperature": 1.3}


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


class KeyedRequest:
    """One request on a connection of its own."""

    def __init__(self, server: Server, body: dict[str, Any], **headers: str) -> None:
        self._connection = connect(server)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **named})

    def answer(self) -> http.client.HTTPResponse:
        self.response = self._connection.getresponse()
        return self.response

    def json(self) -> Any:
        return json.loads(self.answer().read())

    def events(self) -> Iterator[tuple[str, Any]]:
        """(id, data) of each event."""
        if self.answer().status != 200:
            raise AssertionError(self.response.read())
        number = ""
        for line in self.response:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                number = value
            elif name == "data" and value != "[DONE]":
                yield number, json.loads(value)

    def leave(self) -> None:
        self._connection.close()
        self.response.close()


def text_of(events: list[tuple[str, Any]]) -> str:
    return "".join(choice.get("text") or "" for _, event in events for choice in event["choices"])


def of_choice(events: list[tuple[str, Any]], index: int) -> list[tuple[str, Any]]:
    return [(number, event) for number, event in events if event["choices"] and event["choices"][0]["index"] == index]


def generated(server: Server) -> int:
    """Tokens that were generated in all."""
    with http_client(server) as client:
        lines = metrics_at_rest(client).splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:generation_tokens_total"))


def kill(server: Server, kind: str) -> None:
    for name in server.pids():
        if name.startswith(kind):
            server.replace(name)


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Request-Id"])
def test_an_answer_is_given_again(server: Server, key: str, header: str) -> None:
    body = {**LONG, "max_tokens": 20, "n": 2}
    first = KeyedRequest(server, body, **{header: key})
    answers, before = [first.json()], generated(server)
    assert "Idempotent-Replayed" not in first.response.headers
    for _ in range(6):  # on connections of both frontends
        again = KeyedRequest(server, body, **{header: key})
        answers.append(again.json())
        assert again.response.headers["Idempotent-Replayed"] == "true"
    assert all(answer == answers[0] for answer in answers) and len(answers[0]["choices"][0]["text"]) > 20
    assert generated(server) == before
    other = KeyedRequest(server, {**body, "max_tokens": 21}, **{header: key})
    assert other.answer().status == 422
    assert KeyedRequest(server, body, **{header: key + "x"}).json()["choices"] != answers[0]["choices"]


def test_two_at_once_share_one_generation(server: Server, key: str) -> None:
    before = generated(server)
    body = {**LONG, "stream": True}
    asked = [KeyedRequest(server, body, Idempotency_Key=key) for _ in range(4)]
    texts = {text_of(list(one.events())) for one in asked}
    assert len(texts) == 1 and generated(server) - before == LONG["max_tokens"]


def test_a_key_is_its_owners(server: Server, key: str) -> None:
    body = {**LONG, "max_tokens": 10}
    mine = KeyedRequest(server, body, Idempotency_Key=key, Authorization="Bearer me").json()
    theirs = KeyedRequest(server, body, Idempotency_Key=key, Authorization="Bearer them").json()
    assert mine["id"] != theirs["id"]


def broken_off(server: Server, body: dict[str, Any], key: str, events: int) -> list[tuple[str, Any]]:
    """The first events of a stream whose client then goes away."""
    asked = KeyedRequest(server, body, Idempotency_Key=key)
    stream = asked.events()
    seen = [next(stream) for _ in range(events)]
    asked.leave()
    return seen


@pytest.mark.parametrize(("die", "choices"), pairwise(["nobody", "frontend", "detokenizer", "scheduler"], [1, 3]))
def test_a_stream_goes_on_behind_the_last_event(server: Server, key: str, die: str, choices: int) -> None:
    body = {**LONG, "stream": True, "n": choices, "stream_options": {"include_usage": True}}
    seen = broken_off(server, body, key, 7)
    if die != "nobody":
        kill(server, die)
    rest = list(KeyedRequest(server, body, Idempotency_Key=key, Last_Event_ID=seen[-1][0]).events())
    whole = list(KeyedRequest(server, body, Idempotency_Key=key).events())
    assert rest[-1][1]["usage"] == whole[-1][1]["usage"] is not None
    assert {event["id"] for _, event in seen + rest + whole} == {whole[0][1]["id"]}
    for index in range(choices):
        first, second, all_of_it = (of_choice(part, index) for part in (seen, rest, whole))
        assert text_of(first) + text_of(second) == text_of(all_of_it) and len(text_of(all_of_it)) > 300
        assert second[-1][1]["choices"][0]["finish_reason"] == "length"
    middle = rest[len(rest) // 2][0]
    part = list(KeyedRequest(server, body, Idempotency_Key=key, Last_Event_ID=middle).events())
    for index in range(choices):
        assert text_of(of_choice(part, index)) == text_of(of_choice(rest[len(rest) // 2 + 1 :], index))
    assert list(KeyedRequest(server, body, Idempotency_Key=key, Last_Event_ID=rest[-1][0]).events()) == []


def test_a_chat_goes_on_behind_its_role(server: Server, key: str) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 50}
    seen = broken_off(server, body, key, 1)
    rest = list(KeyedRequest(server, body, Idempotency_Key=key, Last_Event_ID=seen[0][0]).events())
    assert "role" in seen[0][1]["choices"][0]["delta"] and "role" not in rest[0][1]["choices"][0]["delta"]
    assert rest[0][1]["choices"][0]["delta"]["content"]


def test_last_event_ids_that_cannot_be(server: Server, key: str) -> None:
    body = {**LONG, "stream": True}
    for headers, status in (
        ({"Last_Event_ID": "3-1"}, 400),
        ({"Last_Event_ID": "3-1.4-1", "Idempotency_Key": key}, 400),
        ({"Last_Event_ID": "zz", "Idempotency_Key": key}, 400),
        ({"Last_Event_ID": "3-1", "Idempotency_Key": key}, 404),
        ({"Idempotency_Key": "x" * 256}, 400),
    ):
        assert KeyedRequest(server, body, **headers).answer().status == status, headers


def test_a_request_that_was_refused_is_tried_again(server: Server, key: str) -> None:
    body = {"prompt": [1 << 30], "max_tokens": 4}
    for _ in range(2):
        asked = KeyedRequest(server, body, Idempotency_Key=key)
        assert asked.answer().status == 400 and "Idempotent-Replayed" not in asked.response.headers
