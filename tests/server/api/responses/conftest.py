"""One server of a model that says what it is told to, with two frontends, for all files of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.server.api.test_tool_calls import PARIS, QWEN, hermes
from tests.support.scripted import scripted
from tests.support.server import Server

from .scene import BOTTLES, PATCH, REMEMBERS


@pytest.fixture(scope="session")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("-\nother\n")
    return file


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, keys_file: Path) -> Iterator[Server]:
    folder = Path(tmp_path_factory.mktemp("qwen"))
    scripts = {**QWEN.scripts, "long": BOTTLES, "in a namespace": hermes("mcp__meteo__weather", PARIS)}
    scripts["custom"] = hermes("patch", {"input": PATCH})
    scripts |= {"ponder": "<think>\nPondered  so.\n</think>\n\nDone.", "known": "It was known.", "sum": "All of it."}
    scripted(folder, scripts, template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{REMEMBERS}")
    options = ("--threads", "1", "--frontends", "2", "--max-restarts", "100", "--served-model-name", "gpt")
    keys = ("--api-key-file", str(keys_file), "--prefix-cache-per-client")
    with Server(str(folder), *keys, *options) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as made:
        yield made
