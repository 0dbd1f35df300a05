"""Streams that are cut and gone on with: what a client has in the end, to be compared with a stream that was not."""

from __future__ import annotations

import http.client
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from actorserve.actors.route.trails.trail import ORIGIN, TRAIL, Trail

from ..client import connect
from ..server import Server

ASKS = {"Content-Type": "application/json", TRAIL: "1"}


def post(server: Server, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """The answer's head; its connection ends with it."""
    connection = connect(server)
    connection.request("POST", path, body, {**ASKS, **(headers or {}), "Connection": "close"})
    return connection.getresponse()


class Pieces:
    """A stream, piece by piece, as its trail divides it."""

    def __init__(self, response: http.client.HTTPResponse, begin: bytes = b"") -> None:
        """`begin` was read of it before."""
        assert response.status == 200, response.read()
        self._data = begin + response.read()
        self.origin = response.headers[ORIGIN]

    def up_to(self, count: int, trail: Trail | None = None) -> tuple[bytes, Trail]:
        """What the first so many pieces have in them, and the trail behind them; -1: all."""
        trail = trail or Trail(self.origin)
        out, at = b"", 0
        for _ in range(len(self) if count < 0 else count):
            end = self._data.index(b"\n\n", self._data.index(b":t ", self._mark(at))) + 2
            given, pieces = trail.feed(self._data[at:end])
            assert pieces == 1
            out, at = out + given, end
        return out, trail

    def _mark(self, at: int) -> int:
        found = self._data.find(b"\n:t ", at)
        return at if self._data.startswith(b":t ", at) else found

    def __len__(self) -> int:
        return self._data.count(b"\n:t ") + self._data.startswith(b":t ")


def answer_of(stream: bytes) -> dict[str, Any]:
    """All that a client reads from it, without how it was cut into events."""
    answer: dict[str, Any] = {"heads": set(), "usage": None, "choices": defaultdict(lambda: defaultdict(list))}
    events = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: ")]
    for data in events:
        if data == "[DONE]":
            continue
        event = json.loads(data)
        answer["heads"].add(tuple(event.get(name) for name in ("id", "created", "model", "system_fingerprint")))
        if event.get("usage"):
            answer["usage"] = {name: value for name, value in event["usage"].items() if "details" not in name}
            answer["details"] = event["usage"]["completion_tokens_details"]
        for choice in event.get("choices", []):
            _add(answer["choices"][choice["index"]], choice)
    answer["done"] = events.count("[DONE]")
    return {**answer, "choices": {index: dict(choice) for index, choice in answer["choices"].items()}}


def _add(to: dict[str, list[Any]], choice: dict[str, Any]) -> None:
    texts = {"text": choice.get("text"), **(choice.get("delta") or {})}
    for name, value in texts.items():
        if name == "tool_calls":
            _add_calls(to, value)
        elif isinstance(value, str):
            to[name] = ["".join(to.get(name, [])) + value]
    for name in ("token_ids", "prompt_token_ids"):
        to[name] += choice.get(name) or []
    for name in ("finish_reason", "stop_reason"):
        if choice.get(name) is not None:
            to[name].append(choice[name])
    for name, values in (choice.get("logprobs") or {}).items():
        to[f"logprobs {name}"] += [_rounded(value) for value in values or []]


def _add_calls(to: dict[str, list[Any]], calls: list[dict[str, Any]]) -> None:
    for call in calls:
        name = f"call {call['index']}"
        function = call.get("function") or {}
        before = to.get(name) or ["", "", ""]
        to[name] = [
            before[0] + (call.get("id") or ""),
            before[1] + (function.get("name") or ""),
            before[2] + (function.get("arguments") or ""),
        ]


def _rounded(value: Any) -> Any:
    """Logprobs to three decimals: another engine may add in another order."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def seams_of(
    server: Server, path: str, fields: dict[str, Any], most: int, read: Callable[[bytes], Any] = answer_of
) -> int:
    """Cut the stream behind up to so many of its pieces, and go on with each; how many seams there were. `read`: what
    the answer is.
    """
    body = json.dumps({**fields, "stream": True}).encode()
    pieces = Pieces(post(server, path, body))
    whole, _ = pieces.up_to(-1)
    wanted = read(whole)
    cuts = range(0, len(pieces), max(1, len(pieces) // most))
    for cut in cuts:
        before, trail = pieces.up_to(cut)
        behind, trail = Pieces(post(server, "/go_on", trail.go_on(path, body, "cut"))).up_to(-1, trail)
        assert read(before + behind) == wanted, (cut, before, behind)
        assert trail.closed
    return len(cuts)
