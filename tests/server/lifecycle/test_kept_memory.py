"""A worker that is killed leaves its KV memory to the next: streams go on in it, and prefixes are found."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.rolling import restart
from tests.support.server import Server

TAKEN = r"(\d+) requests go on, (\d+) of their (\d+) tokens of KV and (\d+) cached blocks are taken over"
PREFIX = "".join(f"{number} and " for number in range(80))
STREAM: dict[str, Any] = {"prompt": PREFIX + "then", "max_tokens": 400, "ignore_eos": True, "temperature": 1, "seed": 2}


def ask(client: httpx.Client, prompt: str) -> int:
    """Tokens of the prompt that were cached."""
    answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def stream(client: httpx.Client, server: Server, victim: str | None) -> tuple[str, int]:
    """The text, and the tokens that were there when the victim was killed."""
    text, events = "", 0
    with client.stream("POST", "/v1/completions", json={**STREAM, "stream": True}) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            text += json.loads(line[6:])["choices"][0]["text"]
            events += 1
            if victim is not None and events == 20:
                os.kill(server.pids()[victim], signal.SIGKILL)
    return text, events


SLOW = [
    pytest.param(options, marks=pytest.mark.slow, id=options[1])
    for options in (
        *(("--kv-cache-dtype", kept) for kept in ("int8", "fp8", "nvfp4", "turboquant_4bit_nc", "turboquant_k3v4_nc")),
        ("--data-parallel-size", "2"),
    )
]


@pytest.mark.parametrize("options", [(), *SLOW])
def test_streams_and_prefixes_survive_a_worker(options: tuple[str, ...]) -> None:
    several = "--data-parallel-size" in options
    with Server("--threads", "1", "--debug", *options) as server, http_client(server) as client:
        expected, _ = stream(client, server, None)
        found = ask(client, PREFIX + "so")
        assert found > 200
        victim = "worker@0" if several else "worker"
        assert stream(client, server, victim)[0] == expected
        requests, taken, known, cached = map(int, server.wait_for(TAKEN).groups())
        assert cached >= found // 32 or several
        if not several:
            assert requests == 1 and taken >= 0.95 * known > 200
            assert "computed again" not in server.output
        assert ask(client, PREFIX + "so") >= found
        restart(server, "worker")
        assert ask(client, PREFIX + "so") >= found, "the same code and options have the same memory"
