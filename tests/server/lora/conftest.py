"""One server with adapters for all tests here: they load others beside them, and kill its actors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server

from .scene import Scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("lora"))
    with Server(*made.options) as server:
        made.server = server
        yield made
