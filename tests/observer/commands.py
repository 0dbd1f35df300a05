"""Commands that look at a server, run as people run them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.server import Server

KEY = "a-key-that-nobody-may-see"
HEADERS = {"Authorization": f"Bearer {KEY}"}
DEADLINE_S = 30.0  # far more than it takes, on any machine


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`actorserve ARGUMENTS…` with its output; fails if it does not end."""
    command = [sys.executable, "-m", "actorserve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)


def port_of(server: Server) -> str:
    return server.base_url.rpartition(":")[2]


def report(server: Server) -> dict[str, Any]:
    """What `ps --json` says."""
    done = run("ps", "--json", "--server", port_of(server))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
