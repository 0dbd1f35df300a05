"""Deaths of actors while requests with pictures are under way: each has the right prompt, and nothing is left held."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.models.vision.folders import picture
from tests.support.runs.original import Imports
from tests.support.server import Server

from .conftest import data_url

WAIT_S = 120.0
CLIENTS, KILLS = 6, 6
ALL = {"ignore_eos": True, "return_token_ids": True}
VICTIMS = ("media-0", "media-1", "media-0", "renderer-0", "scheduler", "frontend-0")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    """Two media actors, and memory for few pictures, so that what is held too long would be missed."""
    options = ("--worker", "scripted", "--scripted-step-ms", "3", "--max-num-seqs", "8", "--max-restarts", "1000")
    with Server(
        str(model), *options, "--media-actors", "2", "--media-memory-bytes", "4M", imports=Imports.PLAIN
    ) as running:
        yield running


def body(seed: int) -> dict[str, Any]:
    """About two pictures, of which one is the same in all."""
    parts = [{"type": "image_url", "image_url": {"url": data_url(picture(60, 40, one))}} for one in (seed, 1000)]
    content = [*parts, {"type": "text", "text": f"What is in picture {seed}?"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12, **ALL}


def answer(client: httpx.Client, seed: int) -> tuple[list[int], int]:
    """(ids of the prompt, tokens of the answer), which the scripted worker makes of its slot; asked again where a
    connection is reset.
    """
    while True:
        with contextlib.suppress(httpx.TransportError):
            told = client.post("/v1/chat/completions", json=body(seed))
            assert told.status_code == 200, told.text
            found = told.json()
            return found["prompt_token_ids"], found["usage"]["completion_tokens"]


def test_streams_of_pictures_survive_kills(server: Server) -> None:
    over = threading.Event()
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as client:
        expected = {seed: answer(client, seed) for seed in range(CLIENTS)}

    def ask(seed: int) -> int:
        count = 0
        with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as client:
            while not over.is_set():
                assert answer(client, seed) == expected[seed]
                count += 1
        return count

    with ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(ask, seed) for seed in range(CLIENTS)]
        try:
            for kill in range(KILLS):
                name = VICTIMS[kill % len(VICTIMS)]
                pid = server.pids()[name]
                os.kill(pid, signal.SIGKILL)
                server.wait_for(rf"{name} is up", WAIT_S)
                if any(one.done() for one in asking):
                    break
        finally:
            over.set()
        assert sum(one.result(WAIT_S) for one in asking) >= CLIENTS
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as client:
        for seed in range(2000, 2080):  # more than there is room for: what was held has been let go
            assert len(answer(client, seed)[0]) >= len(expected[0][0])


def test_what_a_dead_media_actor_had_in_hand_goes_on(server: Server) -> None:
    """They stand still while a request comes, are killed, and their successors find it."""
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as client, ThreadPoolExecutor(1) as pool:
        expected = answer(client, 7)
        pids = [server.pids()[name] for name in ("media-0", "media-1")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        waiting = pool.submit(answer, client, 7)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert waiting.result(WAIT_S) == expected
