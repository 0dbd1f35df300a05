"""What the tests of a folder share, as a server that takes seconds to start: one process of a run has all of them, and
what they share ends behind the last of them, where fixtures of a session would stay, and take their turns, to its end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

FOLDERS = {  # those whose conftest.py has a server, or the like, for all of their files
    *("tests/llm", "tests/observer", "tests/server/dialects", "tests/server/encoder_decoder", "tests/server/lora"),
    *("tests/server/media", "tests/server/pooling", "tests/server/speech", "tests/server/api/responses"),
}


class Sharing:
    """A plugin of each process of a run."""

    def __init__(self) -> None:
        self._made: dict[pytest.FixtureDef[Any], Any] = {}  # for folders, in their order

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, Any, Any]:
        result = yield
        if fixturedef.scope == "session" and fixturedef.baseid in FOLDERS:
            self._made[fixturedef] = request
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        yield
        following = nextitem.nodeid if nextitem else ""
        for made in [made for made in self._made if not following.startswith(f"{made.baseid}/")]:
            made.finish(self._made.pop(made))


def unit(nodeid: str) -> str:
    """What one process runs as a whole: a file, or all that lies in such a folder."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), file)
