"""Who runs which tests of a run, and when what they share ends."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.runs.sharing import ASKED_BY_MANY, FOLDERS, Sharing, unit

ROOT = Path(__file__).parents[2]


def through(hook: Generator[None, Any, Any]) -> None:
    """What a wrapper does before and behind what it is around."""
    next(hook)
    try:
        hook.send(None)
    except StopIteration:
        return
    raise AssertionError("it goes on")


def test_folders_with_a_server_for_all_their_files_are_run_as_wholes() -> None:
    """Others' fixtures of a session are files that any process may write for itself, and what is patched for good."""
    shared = re.compile(r'scope="session"\)\ndef \w+\([^)]*\) -> Iterator\[(Server|LLM|Scene)\]')
    conftests = [file for file in (ROOT / "tests").rglob("conftest.py") if shared.search(file.read_text())]
    assert {str(file.parent.relative_to(ROOT)) for file in conftests} - {"tests"} == FOLDERS - {"tests/server/media"}


def test_all_else_is_run_by_files() -> None:
    assert unit("tests/server/speech/test_words.py::test_a[b::c]") == "tests/server/speech"
    assert unit("tests/llm/pooling/test_pooling.py::test_a") == "tests/llm"
    assert unit("tests/http/test_paths.py::test_a[b/c]") == "tests/http/test_paths.py"


def item(nodeid: str, *asks: str) -> Any:
    return SimpleNamespace(nodeid=nodeid, fixturenames=asks)


def made(name: str, folder: str, scope: str, ended: list[str]) -> Any:
    """A fixture that says when it ends for whom."""
    return type(
        "Made", (), {"argname": name, "baseid": folder, "scope": scope, "finish": lambda _, asked: ended.append(asked)}
    )()


def test_what_is_shared_ends_behind_the_last_test_of_its_folder() -> None:
    sharing, ended = Sharing(), list[str]()
    for folder, scope in (("tests/observer", "session"), ("tests/worker", "session"), ("tests/llm", "module")):
        through(sharing.pytest_fixture_setup(made("own", folder, scope, ended), folder))
    following = item("tests/observer/test_ps.py::test_a")
    through(sharing.pytest_runtest_teardown(following))
    assert not ended
    following.nodeid = "tests/page/test_page.py::test_a"
    through(sharing.pytest_runtest_teardown(following))
    through(sharing.pytest_runtest_teardown(None))
    assert ended == ["tests/observer"]


def test_files_that_ask_for_the_server_of_all_come_first_and_it_ends_behind_them() -> None:
    sharing, ended = Sharing(), list[str]()
    other, alone = item("tests/page/test_page.py::test_a"), item("tests/http/test_paths.py::test_a")
    asking, last = (
        item("tests/http/test_paths.py::test_b", ASKED_BY_MANY),
        item("tests/chat/test_terminal.py::test_a", ASKED_BY_MANY),
    )
    items = [other, alone, asking, last]
    sharing.pytest_collection_modifyitems(items)
    assert items == [alone, asking, last, other]
    through(sharing.pytest_fixture_setup(made(ASKED_BY_MANY, "tests", "session", ended), "it"))
    for following in (alone, last):
        through(sharing.pytest_runtest_teardown(following))
        assert not ended
    through(sharing.pytest_runtest_teardown(other))
    assert ended == ["it"]
