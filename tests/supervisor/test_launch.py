"""What `actorserve launch` does before there is a server."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

FIRST_OF_A_CONTAINER = """
import os, signal, sys
from actorserve.actors.supervisor import launch
own = os.getpid()
os.getpid = lambda: 1
launch._become_supervisor()
os.kill(own, int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_first_process_of_a_container(number: signal.Signals) -> None:
    """Also while a model is downloaded: what has no handler there is not delivered."""
    ended = subprocess.run([sys.executable, "-c", FIRST_OF_A_CONTAINER, str(int(number))], timeout=60)
    assert ended.returncode == 128 + number
