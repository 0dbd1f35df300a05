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
NO_NAMES_YET = """
import socket, sys
from actorserve.actors.cli import main
def getaddrinfo(*_, **__):
    raise socket.gaierror(socket.EAI_AGAIN, "not now")
socket.getaddrinfo = getaddrinfo
sys.exit(main(["launch", "--host", "a.name"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_first_process_of_a_container(number: signal.Signals) -> None:
    """Also while a model is downloaded: what has no handler there is not delivered."""
    ended = subprocess.run([sys.executable, "-c", FIRST_OF_A_CONTAINER, str(int(number))], timeout=60)
    assert ended.returncode == 128 + number


def test_a_name_that_is_not_known_yet_is_tried_again() -> None:
    """A service manager starts nothing again after a status of 2."""
    ended = subprocess.run([sys.executable, "-c", NO_NAMES_YET], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "--host: a.name is no address" in ended.stderr
