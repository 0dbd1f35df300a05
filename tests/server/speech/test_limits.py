"""Sounds of keys with limits: a request whose frontend dies is not in its own way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.models.sounds.whispers import sound, wav
from tests.support.server import Server
from tests.support.until import until

LONG = wav(sound(7.0, seed=1))
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--block-size", "8", "--max-restarts", "100")
KEYS = """\
keys:
  - {name: narrow, key: sk-narrow, concurrent: 1}
  - {name: rated, key: sk-rated, requests_per_minute: 1}
"""


@pytest.fixture(scope="module")
def server(whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(KEYS)
    with Server(str(whisper), "--key-file", str(keys), *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as client:
        yield client


def form(name: str, **fields: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer sk-{name}"}, "files": {"file": LONG}, "data": fields}


def running(client: httpx.Client) -> int:
    (found,) = client.get("/v1/usage", headers={"Authorization": "Bearer sk-narrow"}).json()["data"]
    return int(found["running"])


def text_of(stream: str) -> str:
    """All of its parts, which its end has once more."""
    *parts, last = (json.loads(event.removeprefix("data: ")) for event in stream.split("\n\n") if event)
    text = "".join(part["delta"] for part in parts).strip()
    assert last["type"] == "transcript.text.done" and last["text"] == text
    return text


def kill(server: Server) -> None:
    os.kill(server.pids()["frontend-0"], signal.SIGKILL)


def test_a_stream_goes_on_beside_itself(server: Server, client: httpx.Client) -> None:
    """It is the one request that its key may have at once."""
    path, asked = "/v1/audio/transcriptions", form("narrow", stream="true")
    whole = text_of(client.post(path, **asked).text)
    until(lambda: not running(client))
    with client.stream("POST", path, **asked) as answer:
        parts = answer.iter_text()
        begun = next(parts)
        kill(server)
        told = begun + "".join(parts)
    assert text_of(told) == whole


def test_so_does_what_is_told_as_a_whole(server: Server, client: httpx.Client) -> None:
    path, asked = "/v1/audio/transcriptions", form("narrow", response_format="verbose_json")
    until(lambda: not running(client))
    whole = client.post(path, **asked).json()
    until(lambda: not running(client))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, path, **asked)
        until(lambda: running(client) or answer.done(), 0.001)
        kill(server)
        assert answer.result().json() == whole


def test_a_key_that_has_met_a_limit_is_told_what_is_left(client: httpx.Client) -> None:
    asked = form("rated", language="en")
    first, second = (client.post("/v1/audio/transcriptions", **asked) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert "1 requests a minute" in second.text and int(second.headers["Retry-After"]) >= 1
    for answer in (first, second):
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
