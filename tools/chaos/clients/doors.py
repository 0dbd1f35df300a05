"""Clients of other APIs than OpenAI's, and of what is rarer in its own: beams, calls of tools, stored responses."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import aiohttp

from tests.support.streams.cases import ASKED, CHAT, MESSAGES, ONCE, RESPONSES, TEXT
from tests.support.streams.dialects import ANSWERS, whole_answer
from tests.support.streams.pieces import answer_of
from tools.chaos.compared import bodies, without_ids

from .talking import Request

PATH = "/"  # of all doors: each request names its own
LOOK_S = 0.05  # between two looks at a response in the background, which says nothing by itself
ENDED_S = 300.0  # it has long ended by then, however many faults there were
LONG: dict[str, Any] = {"max_tokens": 100, "seed": 9, "temperature": 1}
CALLED: dict[str, Any] = {
    "name": "look_up",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": (MESSAGES, {**ASKED, **LONG}),
    "messages' calls": (MESSAGES, {**ASKED, **LONG, "tools": [CALLED], "tool_choice": {"type": "any"}}),
    "response": (RESPONSES, {"input": "How do I set an API key?", "temperature": 1, "max_output_tokens": 100}),
    "greedy response": (RESPONSES, {"input": "Who are you?", "temperature": 0, "store": False}),
}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {  # never streamed
    "beams": (TEXT, {**ONCE, "use_beam_search": True, "n": 3, "temperature": 0, "max_tokens": 30}),
    "chat's beams": (CHAT, {**ASKED, "use_beam_search": True, "n": 2, "temperature": 0}),
    "best of": (TEXT, {**ONCE, "n": 2, "best_of": 5, "temperature": 1, "seed": 4, "ignore_eos": True}),
    "prompt's logprobs": (TEXT, {**ONCE, "prompt_logprobs": 2, "temperature": 0, "ignore_eos": True}),
    "in background": (RESPONSES, {"input": "Tell me of this server.", "temperature": 0, "background": True}),
    "tokens": ("/tokenize", {"prompt": "Once upon a time" * 50}),
    "tokens of a message": ("/v1/messages/count_tokens", {"messages": ASKED["messages"]}),
}


def doors(rng: random.Random, count: int) -> list[Request]:
    """Each of them streamed and whole, as far as it is had so; `count` of them, at random if not all."""
    both = {**bodies(), **OWN}
    asked = [(name, *case, streamed) for name, case in both.items() for streamed in (True, False)]
    asked += [(name, *case, False) for name, case in WHOLE.items()]
    rng.shuffle(asked)
    made = []
    for name, path, fields, streamed in asked:
        body = fields if name in WHOLE else {**fields, "stream": streamed}
        made.append((PATH, {"name": name, "path": path, "fields": body, "stream": streamed}))
    return (made * (count // len(made) + 1))[:count]


async def enter(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `ask` of answers: (all that is said, without ids and times, nothing, 1, nothing)."""
    model = {"model": body["model"]} if "model" in body else {}
    try:
        async with session.post(body["path"], json=body["fields"] | model) as response:
            if response.status != 200:
                tally.bad("failed", f"{body['name']}: {response.status} {await response.text()}")
                return None
            data = await _read(response, tally) if body["stream"] else await response.read()
        if body["fields"].get("background"):
            data = await _ended(session, json.loads(data)["id"])
        told = _streamed(body["path"], data) if body["stream"] else _whole(body["path"], json.loads(data))
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    except (AssertionError, KeyError, ValueError) as error:  # an answer that has a hole, or is an error
        tally.bad("failed", f"{body['name']}: {error!r} in {data!r}")
        return None
    return [without_ids(json.dumps(told, sort_keys=True))], [], 1, []


async def _read(response: aiohttp.ClientResponse, tally: Any) -> bytes:
    parts, gap, last = [], (0.0, ""), time.monotonic()
    async for part in response.content.iter_any():
        gap, last = max(gap, (time.monotonic() - last, tally.last_fault)), time.monotonic()
        parts.append(part)
    tally.pauses.append(gap[0])
    tally.gaps.append(gap)
    return b"".join(parts)


async def _ended(session: aiohttp.ClientSession, name: str) -> bytes:
    """The response in the background, once it has ended. TimeoutError if it does not."""
    async with asyncio.timeout(ENDED_S):
        while True:
            async with session.get(f"{RESPONSES}/{name}") as answer:
                data = await answer.read()
            if json.loads(data)["status"] not in ("queued", "in_progress"):
                return data
            await asyncio.sleep(LOOK_S)


def _streamed(path: str, data: bytes) -> Any:
    if path in ANSWERS:
        return ANSWERS[path](data)
    if path in (MESSAGES, RESPONSES):
        events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
        return _message(events) if path == MESSAGES else _response(events)
    answer = answer_of(data)
    assert len(answer.pop("heads")) == 1 and answer["done"] == 1
    return answer


def _message(events: list[dict[str, Any]]) -> Any:
    """Texts and calls joined, and how it ended."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    told = ["".join(delta.get(name, "") for delta in deltas) for name in ("text", "thinking", "partial_json")]
    (end,) = [event for event in events if event["type"] == "message_delta"]
    return [*told, end["delta"], end["usage"]["output_tokens"]]


def _response(events: list[dict[str, Any]]) -> Any:
    """What the last event has, which its deltas have said before."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    response = _whole(RESPONSES, events[-1]["response"])
    assert said == "".join(response[0])
    return response


def _whole(path: str, answer: Any) -> Any:
    if path == RESPONSES:
        told = [part["text"] for item in answer["output"] for part in item.get("content", ())]
        return told, answer["status"], answer["usage"]["output_tokens"]
    if path == MESSAGES:
        return [
            {key: one for key, one in block.items() if key not in ("id", "signature")} for block in answer["content"]
        ]
    return whole_answer(path, answer) if path in ANSWERS or "choices" in answer else answer
