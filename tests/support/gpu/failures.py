"""A plugin of pytest for tests on a device: what fails is told at once, since a part that takes too long is cut, and a
process that the device has given up begins anew: all that it would try from then on fails, however right it is.

    python -m pytest -p tests.support.gpu.failures -rN …
"""

from __future__ import annotations

import os
from typing import Any

import pytest

GIVEN_UP = ("CUDA error", "Error [CUDA]")  # by torch and Triton; of no memory they say something else


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Process() if hasattr(config, "workerinput") else Told(config))


class Told:
    """Of the process that hears of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = report.longreprtext.splitlines()[-1:] if crash is None else crash.message.splitlines()[:1]
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\nFAILED {report.nodeid}: {''.join(lines)}")  # behind the letter of its own


class Process:
    """Of one that runs tests for it, and is replaced when it ends (pytest-xdist)."""

    def __init__(self) -> None:
        self._given_up = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._given_up |= report.failed and any(words in report.longreprtext for words in GIVEN_UP)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Behind all that was said of the test."""
        if self._given_up:
            os._exit(1)
