"""Cohere's answers before an engine that the test plays: events, lines, and version 1."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError
from tests.http.fakes import rendered, say
from tests.http.serving import Answer, Served, serving

HI = [{"role": "user", "content": "Hi"}]
THOUGHT = "<think>Hm.</think>"


LITELLM = {"Request-Source": "unspecified:litellm", "Accept": "application/json"}


async def ask(served: Served, path: str, *texts: str, **headers: str) -> Answer:
    body = {"message": "Hi"} if "v1" in path else {"messages": HI}
    client = await served.client()
    client.send("POST", path, {**body, "stream": True}, **headers)
    job = await served.job()
    rendered(job)
    for number, text in enumerate(texts, 1):
        say(job, 0, text, number, Finish.LENGTH if number == len(texts) else 0)
    return await client.answer()


def lines_of(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200 and answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.body.decode().splitlines()]


async def test_litellm_gets_lines(served: Served) -> None:
    """It reads an end by names of its own."""
    lines = lines_of(await ask(served, "/v2/chat", "a", "b", **LITELLM))
    assert [one["type"] for one in lines if one["type"] != "content-delta"] == [
        "message-start",
        "content-start",
        "content-end",
        "message-end",
    ]
    end = lines[-1]
    assert end["event"] == "message-end" and end["data"]["delta"] == end["delta"]
    assert end["delta"]["finish_reason"] == "MAX_TOKENS"
    for accepted in ("*/*", "application/json"):  # the latter is cohere-java's, which reads events alone
        events = await ask(served, "/v2/chat", "a", Accept=accepted)
        assert events.headers["content-type"].startswith("text/event-stream") and b"data: [DONE]" in events.body
    said = (await served.ask("GET", "/openapi.json")).json["paths"]["/v2/chat"]["post"]["responses"]["200"]["content"]
    assert {"const": "[DONE]"} in said["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]


async def test_version_1_is_lines() -> None:
    async with serving(reasoning_parser="qwen3") as served:
        lines = lines_of(await ask(served, "/v1/chat", THOUGHT, "a", "b"))
    assert [one["event_type"] for one in lines] == ["stream-start", *["text-generation"] * 2, "stream-end"]
    assert [one["is_finished"] for one in lines] == [False, False, False, True]
    whole = lines[-1]["response"]
    assert whole["text"] == "ab" and whole["finish_reason"] == lines[-1]["finish_reason"] == "MAX_TOKENS"
    assert whole["chat_history"] == [{"role": "USER", "message": "Hi"}, {"role": "CHATBOT", "message": "ab"}]
    assert whole["generation_id"] == whole["response_id"] == lines[0]["generation_id"]
    assert whole["meta"]["billed_units"]["output_tokens"] == 3


@pytest.mark.parametrize("header", ["Accepts", "Accept"])
async def test_version_1_is_events_for_who_asks_for_them(served: Served, header: str) -> None:
    answer = await ask(served, "/v1/chat", "a", **{header: "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, nothing = answer.body.decode().split("\n\n")
    assert nothing == "" and events[0].startswith("event: stream-start\ndata: {")


async def test_version_1_that_fails(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/chat", {"message": "Hi", "stream": True})
    job = await served.job()
    rendered(job)
    say(job, 0, "a", 1)
    job.fail(ApiError(500, "It broke."))
    end = lines_of(await client.answer())[-1]
    assert (end["event_type"], end["finish_reason"], end["error"]) == ("stream-end", "ERROR", "It broke.")
    assert end["response"]["text"] == "a"
