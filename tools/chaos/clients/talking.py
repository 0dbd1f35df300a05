"""Clients of /v1/realtime: conversations of several turns, and sounds in parts; what they are told."""

from __future__ import annotations

import base64
import json
import random
import time
from typing import Any

import aiohttp

from tests.support.models.sounds.whispers import sound, wav

Request = tuple[str, dict[str, Any]]  # path and body
PATH = "/v1/realtime"
LONGEST_S = 120.0  # between two events
PART = 16_000  # bytes of a sound at a time
SILENCE = bytes(2 * 16_000)  # a second
QUESTIONS = (
    "What is the capital of France?",
    "How do I set an API key?",
    "What happens when a process dies?",
    "Tell me about this server.",
)
HEARD = "conversation.item.input_audio_transcription."


def conversations(rng: random.Random, count: int) -> list[Request]:
    """Of one to four turns."""
    made: list[Request] = []
    for number in range(count):
        turns = [f"{number}. {rng.choice(QUESTIONS)}" for _ in range(number % 4 + 1)]
        made.append((PATH, {"turns": turns, "most": rng.choice([20, 60]), "stream": True}))
    return made


def sounds(rng: random.Random, count: int) -> list[Request]:
    """Of one to three turns, for a model that listens: which the client commits, or the server finds."""
    lengths = [[rng.choice([0.5, 1.9, 5.0]) for _ in range(number % 3 + 1)] for number in range(count)]
    return [
        (PATH, {"spoken": [wav(sound(seconds, number))[44:] for seconds in one], "finds": number % 2, "stream": True})
        for number, one in enumerate(lengths)
    ]


async def talk(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `ask` of faults: (texts, how they ended, number of ends, what stands between them)."""
    texts, reasons, told = [], list[str](), list[str]()
    gap = (0.0, "")
    try:
        async with session.ws_connect(PATH, params={"model": body.get("model", "")}, autoping=True) as socket:
            await _told(socket, "session.created", tally)
            if "spoken" in body:
                given: dict[str, Any] = {
                    "format": {"type": "audio/pcm", "rate": 16_000},
                    "transcription": {"language": "en"},
                }
                if body["finds"]:
                    given["turn_detection"] = {"type": "server_vad"}
                update: dict[str, Any] = {"type": "transcription", "audio": {"input": given}}
            else:
                update = {"type": "realtime", "max_output_tokens": body["most"], "temperature": 0}
            await socket.send_json({"type": "session.update", "session": update})
            await _told(socket, "session.updated", tally)
            for turn in body.get("turns") or body["spoken"]:
                last = await _ask(socket, turn, bool(body.get("finds")))
                events, pause = await _told(socket, last, tally)
                gap = max(gap, pause)
                texts.append("".join(event.get("delta", "") for event in events if event["type"].endswith("delta")))
                told += [event["type"] for event in events if not event["type"].endswith("delta")]
                whole = events[-1].get("transcript")
                if whole is None:
                    response = events[-1]["response"]
                    reasons.append(response["status"])
                    whole = response["output"][0]["content"][0]["text"]
                if whole != texts[-1]:
                    tally.bad("wrong", f"{texts[-1]} in parts, and {whole} as a whole")
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    tally.pauses.append(gap[0])
    tally.gaps.append(gap)
    return texts, reasons, len(texts), told


async def _ask(socket: aiohttp.ClientWebSocketResponse, turn: str | bytes, finds: bool) -> str:
    """Send a turn, with silence behind it that the server `finds`; the type of the event with which it ends."""
    if isinstance(turn, str):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn}]}
        await socket.send_json({"type": "conversation.item.create", "item": item})
        await socket.send_json({"type": "response.create"})
        return "response.done"
    turn += SILENCE if finds else b""
    for start in range(0, len(turn), PART):
        audio = base64.b64encode(turn[start : start + PART]).decode()
        await socket.send_json({"type": "input_audio_buffer.append", "audio": audio})
    if not finds:
        await socket.send_json({"type": "input_audio_buffer.commit"})
    return f"{HEARD}completed"


async def _told(
    socket: aiohttp.ClientWebSocketResponse, last: str, tally: Any
) -> tuple[list[dict[str, Any]], tuple[float, str]]:
    """Events up to one of this type, and the longest pause between two with the fault before it."""
    events: list[dict[str, Any]] = []
    gap, before = (0.0, ""), time.monotonic()
    while not events or events[-1]["type"] != last:
        data = await next_event(socket)
        events.append(json.loads(data))
        if events[-1]["type"] == "error":
            raise ConnectionError(data)
        now = time.monotonic()
        gap, before = max(gap, (now - before, tally.last_fault)), now
    return events, gap


async def next_event(socket: aiohttp.ClientWebSocketResponse) -> str:
    """Its text. A server that closes is no connection that was reset."""
    message = await socket.receive(timeout=LONGEST_S)
    if message.type is aiohttp.WSMsgType.TEXT:
        return str(message.data)
    closed = f"closed: {message.type.name} {message.data} {message.extra}"
    raise ConnectionError(closed) if message.type is aiohttp.WSMsgType.CLOSE else ConnectionResetError(closed)
