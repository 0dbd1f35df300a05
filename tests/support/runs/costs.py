"""What a run takes of the processors, by folder and file: the tests' own processes, and those that they have seen end.
Beside busy neighbours this stays as it is, where time on the clock does not.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import PurePath
from typing import Any

import pytest

TEST, LAST, COLLECTION = (
    "cpu_s",
    "is_last",
    "collection_cpu_s",
)  # of reports, and in JUnit's files, too
FOLDERS, FILES = 20, 40  # that are shown
SESSION = "(the last tests, with what ends with the run)"
SQUARES, TRIALS = 1_000_000, 5


class Costs:
    """A plugin of each process of a run: those that run tests measure; who has their reports adds up and shows."""

    NAME = "costs"

    def __init__(self) -> None:
        self._last = 0.0
        self._is_last = False
        self._own_collection: float | None = None
        self._collection = 0.0  # of all processes
        self._folders: Counter[str] = Counter()
        self._files: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        self._own_collection = self._last = spent()

    def begin_anew(self) -> None:
        """In a copy: the process that collected counts that itself."""
        self._own_collection, self._last = None, spent()

    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        self._is_last = nextitem is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A test's cost is on its last report, with that of fixtures which have ended behind it."""
        report = yield
        if report.when == "teardown":
            now = spent()
            report.user_properties.append((TEST, round(now - self._last, 3)))
            report.user_properties.append((LAST, self._is_last))
            self._last = now
            if self._own_collection is not None:
                report.user_properties.append((COLLECTION, self._own_collection))
                self._own_collection = None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        path = PurePath(report.nodeid.split("::")[0])
        properties: dict[str, Any] = dict(report.user_properties)
        folder, file = "/".join(path.parts[1:-1][:2]), str(path)
        if properties[LAST]:  # with it end servers that many files share, and whatever else lives as long as a session
            folder = file = SESSION
        self._folders[folder] += properties[TEST]
        self._files[file] += properties[TEST]
        self._collection += properties.get(COLLECTION, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._files:
            return
        self._collection += self._own_collection or 0.0
        total = sum(self._files.values()) + self._collection
        terminalreporter.section(f"CPU time: {total:.0f} s, {self._collection:.0f} of them before the first tests")
        unit = yardstick()
        terminalreporter.write_line(
            f"{total / unit:7,.0f} times that of a loop that squares a million numbers, here {unit * 1000:.0f} ms"
        )
        for title, counter, most in (("folder", self._folders, FOLDERS), ("file", self._files, FILES)):
            for name, seconds in counter.most_common(most):
                terminalreporter.write_line(f"{seconds:7.1f} s {title} {name}")


def yardstick() -> float:
    """CPU seconds of a fixed piece of work: what a run takes, divided by that, says more about the tests than about the
    machine. The least of some trials, since a neighbour takes caches away.
    """
    found = []
    for _ in range(TRIALS):
        began = time.process_time()
        sum(number * number for number in range(SQUARES))
        found.append(time.process_time() - began)
    return min(found)


BEFORE = sum(os.times()[2:4])  # of what tools/test installed before it became this process


def spent() -> float:
    """CPU seconds of this process, and of its children that have ended."""
    return sum(os.times()[:4]) - BEFORE
