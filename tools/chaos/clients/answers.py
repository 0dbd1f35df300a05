"""What is said to one request, as it can be compared; what all clients saw."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from . import batching, doors, responding, sessions, talking
from .http2 import Http2Session

OWN_CLIENTS = {
    talking.PATH: talking.talk,
    sessions.PATH: sessions.hold,
    responding.PATH: responding.respond,
    batching.PATH: batching.hold,
    doors.PATH: doors.enter,
    batching.MESSAGES: batching.hold_messages,
}
Answer = tuple[list[str] | list[float], list[str], int, list[str]]
RESETS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionResetError)


@dataclass
class Tally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)  # the longest one of each stream, seconds
    gaps: list[tuple[float, str]] = field(default_factory=list)  # the longest behind its first text; the last fault
    commands: Counter[str] = field(default_factory=Counter)
    last_fault: str = "none"
    relayed: aiohttp.ClientSession | Http2Session | None = None  # whose connections the death of the relay resets

    def bad(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{kind}: {what[:300]}")

    def lost(self, session: aiohttp.ClientSession | Http2Session, error: Exception) -> None:
        """A request that ended without its answer."""
        if session is self.relayed and isinstance(error, RESETS):
            self.counts["reset with the relay"] += 1
        else:
            self.bad("failed", f"{type(error).__name__} {error}")


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """As the client is told to send it: a form where there is a sound."""
    if "sound" not in body:
        return {"json": body}
    form = aiohttp.FormData()
    for name, value in body.items():
        if name == "sound":
            form.add_field("file", value, filename="a.wav")
        else:
            form.add_field(name, str(value).lower())
    return {"data": form}


def numbers_of(answer: Any) -> list[float]:
    """All of a pooled answer's, in order of their places in it; tokens and ids are not among them."""
    if isinstance(answer, float):
        return [answer]
    if isinstance(answer, dict):
        answer = [answer[name] for name in sorted(answer) if name not in ("usage", "created", "id")]
    return [number for part in answer for number in numbers_of(part)] if isinstance(answer, list) else []


def same(answer: Any, expected: Any) -> bool:
    """Are they equal? Numbers of a vector have other last bits in another batch."""
    if not answer[0] or isinstance(answer[0][0], str):
        return bool(answer == expected)
    pairs = zip(answer[0], expected[0], strict=False)
    return len(answer[0]) == len(expected[0]) > 0 and all(abs(one - other) < 1e-4 for one, other in pairs)


class Reading:
    """What has come of one answer."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._is_sound = "sound" in body
        self.texts, self.reasons = [""] * body.get("n", 1), [""] * body.get("n", 1)
        self.ends = 0
        self.told: list[str] = []

    def take(self, chunk: dict[str, Any]) -> None:
        """One event of a stream, or all of it."""
        if self._is_sound:
            done = chunk.get("type") != "transcript.text.delta"
            self.ends += done
            self.texts[0] = f"{self.texts[0]} | {chunk['text']}" if done else self.texts[0] + chunk["delta"]
            return
        self.told += map(str, chunk.get("prompt_token_ids") or ())
        for choice in chunk["choices"]:
            index = choice["index"]
            part = choice.get("delta") or choice.get("message") or {}
            self.texts[index] += choice.get("text") or part.get("content") or ""
            self.reasons[index] = choice["finish_reason"] or self.reasons[index]
            if logprobs := choice["logprobs"]:
                self.told += [one["token"] for one in logprobs.get("content", ())] or logprobs.get("tokens", [])


async def ask(
    session: aiohttp.ClientSession | Http2Session, path: str, body: dict[str, Any], tally: Tally
) -> Answer | None:
    """(text and finish reason of each choice, number of ends, tokens told) of one answer, or None if there was none:
    that is counted.
    """
    if path in OWN_CLIENTS:
        assert isinstance(session, aiohttp.ClientSession), f"{path} is not asked over HTTP/2"
        answer: Answer | None = await OWN_CLIENTS[path](session, body, tally)
        return answer
    reading = Reading(body)
    pause, gap, last = 0.0, (0.0, ""), time.monotonic()
    try:
        async with session.post(path, **sent(body)) as response:
            if response.status != 200:
                tally.bad("failed", f"{response.status} {await response.text()}")
                return None
            async for line in response.content:
                now = time.monotonic()
                pause = max(pause, now - last)
                if any(reading.texts):
                    gap = max(gap, (now - last, tally.last_fault))
                last = now
                data = line.removeprefix(b"data: ").strip()
                if not data or data == b"[DONE]":
                    reading.ends += data == b"[DONE]"
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    tally.bad("failed", data.decode())
                    return None
                if "sound" not in body and "choices" not in chunk:
                    tally.pauses.append(pause)
                    return numbers_of(chunk), [], 0, []
                reading.take(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    if body["stream"]:
        tally.pauses.append(pause)
        tally.gaps.append(gap)
    return reading.texts, reading.reasons, reading.ends, reading.told
