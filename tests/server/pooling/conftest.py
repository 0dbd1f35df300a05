"""One server of a small encoder with sentence-transformers' files, for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models.embedders import write_model, write_modules
from tests.support.plugins import io_processor
from tests.support.server import Server

PLUGIN = Path(io_processor.__file__)
OPTIONS = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--served-model-name", "embedder")
PLUGGED = ("--io-processor-plugin", f"{PLUGIN}:Nearest", "--renderers", "2", "--max-restarts", "1000")
PROMPTS = {"query": "Which text answers: ", "document": ""}


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_model("bert", folder)
    write_modules(folder, prompts=PROMPTS)
    return folder


@pytest.fixture(scope="session")
def pooling_server(encoder: Path) -> Iterator[Server]:
    with Server(str(encoder), *OPTIONS, *PLUGGED) as server:
        yield server
