"""Commands that look at a server."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.server import Server
from tests.support.warm import run_command

KEY = "a-key-that-nobody-may-see"
HEADERS = {"Authorization": f"Bearer {KEY}"}
DEADLINE_S = 120.0  # a restart of workers, one after the other, took 30 on a busy machine


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`actorserve ARGUMENTS…` with its output; fails if it does not end."""
    return run_command(*arguments, wait_s=DEADLINE_S)


def port_of(server: Server) -> str:
    return server.base_url.rpartition(":")[2]


def report(server: Server) -> dict[str, Any]:
    """What `ps --json` says."""
    done = run("ps", "--json", "--server", port_of(server))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
