"""Who runs which tests of a run, and when what they share ends."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.runs.sharing import FOLDERS, Sharing, unit

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


def test_what_is_shared_ends_behind_the_last_test_of_its_folder() -> None:
    sharing, ended = Sharing(), list[str]()
    for folder, scope in (("tests/observer", "session"), ("tests/worker", "session"), ("tests/llm", "module")):
        made = type(
            "Made", (), {"baseid": folder, "scope": scope, "finish": lambda self, request: ended.append(request)}
        )
        through(sharing.pytest_fixture_setup(made(), folder))
    following: Any = SimpleNamespace(nodeid="tests/observer/test_ps.py::test_a")
    through(sharing.pytest_runtest_teardown(following))
    assert not ended
    following.nodeid = "tests/page/test_page.py::test_a"
    through(sharing.pytest_runtest_teardown(following))
    through(sharing.pytest_runtest_teardown(None))
    assert ended == ["tests/observer"]
