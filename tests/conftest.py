"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests.server import Server

MANY_FILES = 300  # of the 1,024 that some machines allow


def pytest_runtest_setup() -> None:
    """What a test starts must hear Ctrl-C, also where one before played an actor in this process, or a shell began it
    in the background: both ignore it, and whoever is started inherits that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logfinish() -> None:
    """Rings that a test has made hold descriptors until Python's collector gets to them."""
    if len(os.listdir("/proc/self/fd")) > MANY_FILES:
        gc.collect()


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A real server with the demo model, for all tests that do not disturb it."""
    with Server() as server:
        yield server
