"""Clients of /open_session: turns that go on from one another, each of which says what all its tokens at once say."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .talking import QUESTIONS, Request

PATH = "/open_session"
GOES_ON = ("last", "rid", "without its answer")  # how a turn comes behind the one before
FIELDS = {"ignore_eos": True, "return_token_ids": True, "temperature": 0}


def sessions(rng: random.Random, count: int) -> list[Request]:
    """Of one to four turns, streamed or not."""
    return [
        (
            PATH,
            {
                "turns": [f"{number}. {rng.choice(QUESTIONS)}" for _ in range(number % 4 + 1)],
                "goes_on": GOES_ON[number % len(GOES_ON)],
                "most": rng.choice([8, 40]),
                "stream": number % 2 > 0,
            },
        )
        for number in range(count)
    ]


@dataclass
class Said:
    """One answer."""

    id: str = ""
    text: str = ""
    reason: str = ""
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Failed(ConnectionError):
    """An answer that is an error."""


async def hold(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `ask` of answers: (texts, how they ended, number of ends, all tokens)."""
    given = {"capacity_of_str_len": 0, "streaming": body["goes_on"] == "last", "timeout": 300}
    turns, gaps = list[Said](), [(0.0, "")]
    fields = FIELDS | {"max_tokens": body["most"], "stream": body["stream"]}
    model = {"model": body["model"]} if "model" in body else {}
    try:
        name = await _post(session, PATH, given)
        for text in body["turns"]:
            params = {"id": name}
            if turns and body["goes_on"] != "last":
                params |= {"rid": turns[-1].id, "drop_previous_output": body["goes_on"] == "without its answer"}
            turns.append(await _turn(session, fields | model | {"prompt": text, "session_params": params}, tally, gaps))
        for turn in turns:
            at_once = await _turn(session, fields | model | {"prompt": turn.prompt}, tally, gaps)
            if at_once.tokens != turn.tokens:
                tally.bad("wrong", f"{body}: a turn says {turn.tokens}, its tokens at once {at_once.tokens}")
        await _post(session, "/close_session", {"session_id": name})
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    if body["stream"]:
        tally.pauses.append(max(gap for gap, _ in gaps))
        tally.gaps.append(max(gaps))
    told = [str(token) for turn in turns for token in turn.prompt + turn.tokens]
    return [turn.text for turn in turns], [turn.reason for turn in turns], len(turns), told


async def _post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with session.post(path, json=body) as response:
        if response.status != 200:
            raise Failed(f"{path}: {response.status} {await response.text()}")
        return await response.json()


async def _turn(
    session: aiohttp.ClientSession, body: dict[str, Any], tally: Any, gaps: list[tuple[float, str]]
) -> Said:
    """Its answer; the longest gap between two events of it, with the fault before."""
    said, before = Said(), time.monotonic()
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise Failed(f"{response.status} {await response.text()}")
        async for line in response.content:
            now = time.monotonic()
            gaps.append((now - before, tally.last_fault))
            before = now
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise Failed(data.decode())
            for choice in chunk["choices"]:
                said.id = chunk["id"]
                said.text += choice["text"]
                said.reason = choice["finish_reason"] or said.reason
                said.prompt += choice.get("prompt_token_ids") or []
                said.tokens += choice["token_ids"] or []
    return said
