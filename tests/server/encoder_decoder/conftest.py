"""Servers of tiny models with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models.encoder_decoders import write_tiny
from tests.support.server import Server


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    write_tiny("t5", folder)
    return folder


@pytest.fixture(scope="session")
def t5_server(t5: Path) -> Iterator[Server]:
    options = ("--device", "cpu", "--dtype", "float32", "--block-size", "8", "--served-model-name", "reader")
    with Server(str(t5), *options, "--max-model-len", "256") as server:
        yield server
