"""A server of a tiny Whisper, and transformers beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.models.sounds.whispers import Reference, write_whisper
from tests.support.runs.original import Imports
from tests.support.server import Server


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    write_whisper(folder)
    return folder


@pytest.fixture(scope="session")
def reference(whisper: Path) -> Reference:
    return Reference(whisper)


@pytest.fixture(scope="session")
def speech_server(whisper: Path) -> Iterator[Server]:
    options = ("--device", "cpu", "--dtype", "float32", "--block-size", "8", "--served-model-name", "ears")
    restarts = ("--max-restarts", "100")
    bytes_ = ("--max-body-bytes", "600KiB", "--max-audio-bytes", "1MiB")
    with Server(str(whisper), *options, *restarts, *bytes_, imports=Imports.PLAIN) as server:
        yield server


@pytest.fixture
def client(speech_server: Server) -> OpenAI:
    return OpenAI(base_url=f"{speech_server.base_url}/v1", api_key="-", max_retries=0)
