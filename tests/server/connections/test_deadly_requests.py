"""Requests at which a frontend dies each time it reads them: they end, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.server import Server

WAIT_S = 120
DEADLY = """
import asyncio
import os
import pathlib
from aiohttp import web

@web.middleware
async def deadly(request, handler):
    if request.headers.get("X-Deadly") == "abort":
        os.abort()
    while request.headers.get("X-Deadly") == "spin":
        pass
    if request.headers.get("X-Deadly") == "stand by":
        with pathlib.Path(__file__).with_name("standing").open("a") as file:
            file.write("x")
        await asyncio.sleep(1)
    return await handler(request)
"""
LONG = {"prompt": "Go on.", "max_tokens": 300, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deadly")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "harms.py").write_text(DEADLY)
    options = ("--hang-timeout", "2", "--middleware", "harms:deadly")
    with Server(*options, env={"PYTHONPATH": str(folder)}) as made:
        yield made


@pytest.mark.parametrize("deadly", ["abort", "spin"])
async def test_one_is_given_up_and_no_other(server: Server, folder: Path, deadly: str) -> None:
    standing = folder / "standing"
    standing.unlink(missing_ok=True)
    async with aiohttp.ClientSession(server.base_url, timeout=aiohttp.ClientTimeout(WAIT_S)) as session:

        async def ask(prompt: str, deadly: str = "", **more: object) -> tuple[int, bytes]:
            asked, headers = {**LONG, "prompt": prompt, **more}, {"X-Deadly": deadly}
            async with session.post("/v1/completions", json=asked, headers=headers) as answer:
                return answer.status, await answer.read()

        wanted = [await ask(f"Go on, {number}.", stream=True) for number in range(2)]
        begun = [asyncio.create_task(ask(f"Go on, {number % 2}.", stream=True)) for number in range(6)]
        beside = [asyncio.create_task(ask("Go on.", "stand by", max_tokens=4)) for _ in range(4)]
        async with asyncio.timeout(WAIT_S):
            while not standing.exists() or standing.stat().st_size < 4:  # the frontend has read all of them then
                await asyncio.sleep(0.01)
        status, said = await ask("Go on.", deadly)
        assert status == 500 and b"request_given_up" in said
        for number, task in enumerate(begun):
            assert texts(await task) == texts(wanted[number % 2])
        assert [(await task)[0] for task in beside] == [200] * 4, "each is cleared by itself"
        assert (await ask("Go on.", max_tokens=2))[0] == 200, "the server goes on"
    server.wait_for("a request is given up, at which", since_start=False)


def texts(answer: tuple[int, bytes]) -> list[object]:
    """Of a stream."""
    status, said = answer
    assert status == 200 and said.endswith(b"data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in said.split(b"\n\n") if line.startswith(b"data: {")]
    return ["".join(event["choices"][0]["text"] for event in events), events[-1]["choices"][0]["finish_reason"]]
