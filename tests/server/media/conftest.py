"""A server whose model takes pictures. Its worker is scripted: what a picture shows is the worker's matter."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.models.vision.folders import picture, vision_folder
from tests.support.runs.original import Imports
from tests.support.server import Server

WAIT_S = 60.0
Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2.5-VL without weights."""
    return vision_folder("qwen2_5_vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What requests may name by file://."""
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def server(model: Path, folder: Path) -> Iterator[Server]:
    options = ("--worker", "scripted", "--max-num-seqs", "8", "--admin-api-key", "master", "--max-restarts", "1000")
    limits = ("--limit-mm-per-prompt", '{"image": 3}', "--allowed-local-media-path", str(folder))
    with Server(
        str(model),
        *options,
        *limits,
        "--enable-mm-embeds",
        "--media-fetch-timeout",
        "2",
        "--max-media-pixels",
        "1M",
        imports=Imports.PLAIN,
    ) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def ask(client: httpx.Client) -> Ask:
    """Ask about some parts of a content."""

    def post(*parts: dict[str, Any] | str, **fields: Any) -> httpx.Response:
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "ignore_eos": True, **fields}
        return client.post("/v1/chat/completions", json=body)

    return post


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def at(url: str) -> dict[str, Any]:
    """A picture at an address, as a part of a content."""
    return {"type": "image_url", "image_url": {"url": url}}


def shown(seed: int = 0, width: int = 60, height: int = 40) -> dict[str, Any]:
    """A picture in the request."""
    return at(data_url(picture(width, height, seed)))
