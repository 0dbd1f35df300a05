"""Runs in copies of the process that has collected: pytest as a program, with tests of its own."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.runs.forks import units
from tests.support.warm import run_module

CONFTEST = """
import os
from pathlib import Path
import pytest
from tests.support.runs.forks import Forks

pytest_addoption = Forks.add_option

def pytest_configure(config):
    config.pluginmanager.register(Forks(config))

def note(what):
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def shared():
    yield note
    note("ended")
"""
DEADLY = """
import os, signal
from conftest import note
note("imported")

def test_before(shared): shared("began")
def test_deadly(shared): os.kill(os.getpid(), signal.SIGKILL)
def test_behind(shared): shared("began")
"""
OTHERS = """
import warnings
from conftest import note
note("imported")

def test_warns(shared): shared("began"), warnings.warn("beware")
def test_fails(shared): assert not shared, "it is there"
def test_last(shared): print("a word")
"""


def run(folder: Path, *arguments: str) -> tuple[int, str, dict[str, str]]:
    """The exit status, the output, and what became of each test."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_deadly.py").write_text(DEADLY)
    (folder / "test_others.py").write_text(OTHERS)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    file = folder / "results.xml"
    ended = run_module("pytest", "-p", "no:schemathesis", "-p", "no:cacheprovider", f"--junitxml={file}", *arguments)
    cases = ElementTree.parse(file).iter("testcase")
    return ended.returncode, ended.stdout, {case.attrib["name"]: "".join(one.tag for one in case) for case in cases}


def test_one_that_dies_fails_one_test_and_nothing_else(tmp_path: Path) -> None:
    status, output, became = run(tmp_path, "--forks", "2", str(tmp_path))
    assert status == pytest.ExitCode.TESTS_FAILED
    assert {name for name, how in became.items() if how == "failure"} == {"test_deadly", "test_fails"}, output
    assert became.keys() == {"test_before", "test_deadly", "test_behind", "test_warns", "test_fails", "test_last"}
    assert "ended with -9 while it ran test_deadly.py::test_deadly" in output
    assert re.search("2 failed, 4 passed, [1-9] warning", output), output  # what is imported anew may warn, too
    assert "beware" in output and "it is there" in output
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    by_kind = {kind: {pid for what, pid in notes if what == kind} for kind in ("imported", "began", "ended")}
    assert len(by_kind["imported"]) == 1 and not by_kind["imported"] & by_kind["began"]
    assert len(by_kind["began"] - by_kind["ended"]) == 1  # the one that died


def test_it_stops_behind_the_first_failure(tmp_path: Path) -> None:
    status, output, became = run(tmp_path, "--forks", "1", "-x", str(tmp_path / "test_others.py"))
    assert status == pytest.ExitCode.TESTS_FAILED and "stopping after 1 failures" in output
    assert became.keys() == {"test_warns", "test_fails"}
    assert "ended" in (tmp_path / "notes").read_text()


def test_files_and_folders_with_servers_stay_together() -> None:
    files = (
        "tests/tools/test_forks.py",
        "tests/llm/test_async.py",
        "tests/tools/test_sharing.py",
        "tests/llm/test_lora.py",
    )
    names = [*(f"{file}::test_a" for file in files), f"{files[0]}::test_b[1::2]"]
    assert [list(one) for one in units(names)] == [[0, 4], [1, 3], [2]]
