"""Requests of a server with several engines, also on other machines: drawn, masked, stopped, with logprobs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp

from tests.support.client import http_session
from tests.support.server import Server

ROOT = {"Authorization": "Bearer root"}
SECRET = {"ACTORSERVE_ENGINE_SECRET": "this is what both know"}
LONG = {"max_tokens": 300, "ignore_eos": True, "temperature": 1, "seed": 7}
WORD = r"[a-z]{3,9}( [a-z]{1,9}){30,40}"
STREAMS: list[dict[str, Any]] = [
    {"temperature": 1, "seed": 5},
    {"temperature": 0, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 1, "seed": 9, "n": 3},
    {"temperature": 0.7, "seed": 3, "structured_outputs": {"regex": WORD}, "ignore_eos": False},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1, "seed": 4, "stop": ["the z", "q"]},
    {"temperature": 1, "seed": 4, "vllm_xargs": {"only": 77}},
]
OF_ANY_SERVER = len(STREAMS) - 1  # the last one is for a server with that logits processor


async def read(session: aiohttp.ClientSession, number: int, begun: asyncio.Barrier, to: int | None = None) -> list[Any]:
    """One of the streams, until its end; `begun` once it has some text."""
    body = {"prompt": f"{number}. Once upon a time", "max_tokens": 160, "ignore_eos": True, **STREAMS[number]}
    headers = {} if to is None else {"X-data-parallel-rank": str(to)}
    choices: dict[int, list[Any]] = {}
    async with session.post("/v1/completions", json={**body, "stream": True}, headers=headers) as response:
        assert response.status == 200, await response.text()
        first = True
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            (choice,) = json.loads(line[6:])["choices"]
            text, tokens, _ = choices.get(choice["index"], ["", [], None])
            told = choice["logprobs"]["tokens"] if choice["logprobs"] else []
            choices[choice["index"]] = [text + choice["text"], tokens + told, choice["finish_reason"]]
            if first:
                first = False
                await begun.wait()
    return [choices[index] for index in sorted(choices)]


async def all_answers(
    server: Server,
    to: int | None = None,
    victims: tuple[str | int, ...] = (),
    count: int = len(STREAMS),
    begun: asyncio.Event | None = None,
) -> list[list[Any]]:
    """Of the first streams at once, in one engine or in either; when all have begun these die,
    actors by name or processes, and somebody is told.
    """
    all_begun = asyncio.Barrier(count + 1)
    async with http_session(server) as session:
        reading = [asyncio.create_task(read(session, number, all_begun, to)) for number in range(count)]
        await all_begun.wait()
        if begun is not None:
            begun.set()
        for victim in victims:
            os.kill(victim if isinstance(victim, int) else server.pids()[victim], signal.SIGKILL)
        return await asyncio.gather(*reading)


async def post(session: aiohttp.ClientSession, path: str, body: Any = None) -> tuple[int, Any]:
    """As an operator."""
    async with session.post(path, json=body, headers=ROOT) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


async def complete(session: aiohttp.ClientSession, to: int | None, **fields: Any) -> str:
    headers = {} if to is None else {"X-data-parallel-rank": str(to)}
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, **fields}
    async with session.post("/v1/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["choices"][0]["text"])
