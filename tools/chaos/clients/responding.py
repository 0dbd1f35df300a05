"""Clients of /v1/responses whose model calls tools of an MCP server: over WebSockets, as streams, and whole."""

from __future__ import annotations

import json
import random
import secrets
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.plugins import mcp_server
from tests.support.scripted import scripted

from .talking import Request, next_event

PATH = "/v1/responses"
WAYS = ("socket", "stream", "whole")
TOOL: dict[str, Any] = {"type": "mcp", "server_label": "noted", "require_approval": "never"}
DONE = "All of it is done, and it was said in several words."
DRAWN = "#"
OWN = DRAWN * 12  # digits that are drawn anew for each call: one that is made twice is known by them
MARK = "<tool_call>"  # by which the format of calls is known
SCRIPTS = {
    "once": 'I call it.\n<tool_call>\n{"name": "say", "arguments": {"text": "<done>' + OWN + '"}}\n</tool_call>',
    "twice": '<tool_call>\n{"name": "say", "arguments": {"text": "<once>' + OWN + '"}}\n</tool_call>',
    "done": DONE,
}
CALLS = {"once": 1, "twice": 2, "done": 0}
CUT = ("interrupted", "has ended")  # what is told of a call that may have been made, and is not made again
TEMPLATE = (  # behind it the model is done
    f"{{% if false %}}{MARK}{{% endif %}}{{% set last = messages[-1].content %}}"
    f"{{% if '{CUT[0]}' in last or '{CUT[1]}' in last %}}<done>{{% else %}}"
    f"{{{{ last.split('{DRAWN}')[0] }}}}{{% endif %}}"
)


def server_options(folder: Path) -> list[str]:
    """A model that calls tools by what it is asked, and the server of these tools, which notes all calls."""
    model = scripted(folder / "calling", SCRIPTS, template=TEMPLATE, drawn=DRAWN)
    command = {"command": sys.executable, "args": [mcp_server.__file__, str(folder)]}
    (folder / "tools.json").write_text(json.dumps({"mcpServers": {"noted": command}}))
    return [str(model), "--tool-server", str(folder / "tools.json")]


def calls_made_twice(folder: Path) -> list[str]:
    """By what they said, among all that the tools' server has noted."""
    noted = folder / "calls"
    calls = Counter(noted.read_text().splitlines() if noted.exists() else ())
    return [text for text, count in calls.items() if count > 1]


def responses(rng: random.Random, count: int) -> list[Request]:
    """Of one to three turns, each of which goes on from the response before."""
    turns = [rng.choices(list(SCRIPTS), k=number % 3 + 1) for number in range(count)]
    return [(PATH, {"turns": some, "way": WAYS[at % 3], "stream": at % 3 < 2}) for at, some in enumerate(turns)]


class Failed(ConnectionError):
    """An answer that is an error, or has a hole."""


class Events:
    """Those of one answer, by their numbers, and the longest gap between two."""

    def __init__(self, tally: Any) -> None:
        self._tally, self._count = tally, 0
        self._gap, self._before = (0.0, ""), time.monotonic()

    def take(self, data: str | bytes) -> dict[str, Any] | None:
        """The response at its end."""
        event = json.loads(data)
        if event["type"] in ("error", "response.failed", "response.incomplete"):
            raise Failed(json.dumps(event))
        if event["sequence_number"] != self._count:
            raise Failed(f"event {event['sequence_number']} where {self._count} was to come")
        self._count += 1
        now = time.monotonic()
        self._gap, self._before = max(self._gap, (now - self._before, self._tally.last_fault)), now
        if event["type"] != "response.completed":
            return None
        self._tally.pauses.append(self._gap[0])
        self._tally.gaps.append(self._gap)
        return dict(event["response"])


async def respond(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `ask` of answers: (texts, how they ended, number of ends, nothing); calls are looked at here."""
    answers: list[dict[str, Any]] = []
    asked = partial(_asked, answers, {"model": body["model"]} if "model" in body else {})
    try:
        if body["way"] == "socket":
            async with session.ws_connect(PATH) as socket:
                for script in body["turns"]:
                    answers.append(await _over(socket, asked(script), Events(tally)))
        else:
            for script in body["turns"]:
                answers.append(await _posted(session, asked(script) | {"stream": body["stream"]}, Events(tally)))
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    for script, answer in zip(body["turns"], answers, strict=True):
        if problem := _problem(script, [item for item in answer["output"] if item["type"] == "mcp_call"]):
            tally.bad("wrong", f"<{script}>: {problem}")
    texts = ["".join(part["text"] for part in answer["output"][-1].get("content", ())) for answer in answers]
    return texts, [answer["status"] for answer in answers], len(answers), []


def _asked(answers: list[dict[str, Any]], model: dict[str, Any], script: str) -> dict[str, Any]:
    before = {"previous_response_id": answers[-1]["id"]} if answers else {}
    drawn = {"temperature": 0.1, "seed": secrets.randbits(48)}
    return {"input": f"<{script}>", "tools": [TOOL], **drawn, **before, **model}


async def _over(socket: aiohttp.ClientWebSocketResponse, asked: dict[str, Any], events: Events) -> dict[str, Any]:
    await socket.send_json({"type": "response.create"} | asked)
    while True:
        if (response := events.take(await next_event(socket))) is not None:
            return response


async def _posted(session: aiohttp.ClientSession, asked: dict[str, Any], events: Events) -> dict[str, Any]:
    async with session.post(PATH, json=asked) as answer:
        if answer.status != 200:
            raise Failed(f"{answer.status} {await answer.text()}")
        if not asked["stream"]:
            return dict(await answer.json())
        async for line in answer.content:
            if line.startswith(b"data: {") and (response := events.take(line[6:])) is not None:
                return response
    raise Failed("a stream without its end")


def _problem(script: str, calls: list[dict[str, Any]]) -> str:
    """Each brings what it said, or was interrupted: then it is the last."""
    interrupted = [call for call in calls if any(words in json.dumps(call["error"]) for words in CUT)]
    others = [call["output"].partition(DRAWN)[0] for call in calls if call not in interrupted]
    wanted = ["<once>", "<done>"][-CALLS[script] :] if CALLS[script] else []
    if others == wanted[: len(others)] and len(calls) <= CALLS[script] and (interrupted or others == wanted):
        return ""
    return f"calls {calls} instead of {wanted}"
