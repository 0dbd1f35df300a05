"""What the tests of a folder share, as a server that takes seconds to start: one process of a run has all of them, and
what they share ends behind the last of them, where fixtures of a session would stay, and take their turns, to its end.

The server that files of many folders ask for is each process's own: these files come first, and it ends behind them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

FOLDERS = {  # those whose conftest.py has a server, or the like, for all of their files
    *("tests/llm", "tests/observer", "tests/server/dialects", "tests/server/encoder_decoder", "tests/server/lora"),
    *("tests/server/media", "tests/server/pooling", "tests/server/speech", "tests/server/api/responses"),
}
ASKED_BY_MANY = "demo_server"


class Sharing:
    """A plugin of each process of a run."""

    def __init__(self) -> None:
        self._made: dict[pytest.FixtureDef[Any], Any] = {}  # for folders, or many, in their order
        self._asking: set[str] = set()  # what one process runs as a whole, and has a test that asks

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._asking = {unit(one.nodeid) for one in items if ASKED_BY_MANY in getattr(one, "fixturenames", ())}
        items.sort(key=lambda item: unit(item.nodeid) not in self._asking)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, Any, Any]:
        result = yield
        if fixturedef.argname == ASKED_BY_MANY or (fixturedef.scope == "session" and fixturedef.baseid in FOLDERS):
            self._made[fixturedef] = request
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        yield
        following = nextitem.nodeid if nextitem else ""
        for made in [made for made in self._made if not self._may_ask(following, made)]:
            made.finish(self._made.pop(made))

    def _may_ask(self, following: str, made: pytest.FixtureDef[Any]) -> bool:
        if made.argname == ASKED_BY_MANY:
            return unit(following) in self._asking
        return following.startswith(f"{made.baseid}/")


def unit(nodeid: str) -> str:
    """What one process runs as a whole: a file, or all that lies in such a folder."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), file)
