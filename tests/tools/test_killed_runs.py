"""A run of the tests that is killed leaves no servers, and what it leaves in folders the next one removes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.support.runs.temporary import LOCK, PREFIX, hold, remove_left
from tests.support.server import WAIT_S
from tests.support.warm import server_environment

ROOT = Path(__file__).parents[2]
SLEEPS = """
import sys, time
from pathlib import Path
from tests.support.runs.original import Imports
from tests.support.server import Server
file = Path(sys.argv[1], "sleeps.py")
file.write_text("import time\\nprint('begun', flush=True)\\ntime.sleep(600)\\n")
warm = Server(program=str(file), wait=False, imports=Imports.PLAIN)
servers = [warm, Server(command=[sys.executable, str(file)], wait=False)]
for one in servers:
    one.wait_for("begun")
print(*(one.pid for one in servers), flush=True)
time.sleep(600)
"""


def test_servers_die_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    """Copies of one that has all imports, and those that are started cold."""
    line = [sys.executable, "-c", SLEEPS, str(tmp_path)]
    environment = server_environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        servers = [os.pidfd_open(int(pid)) for pid in run.stdout.readline().split()]
        run.kill()
        for server in servers:
            assert select.select([server], [], [], WAIT_S)[0], "it goes on"
            os.close(server)
    assert len(servers) == 2


def test_folders_are_removed_that_nobody_holds(tmp_path: Path) -> None:
    held, left, begun, others = (tmp_path / name for name in (f"{PREFIX}a", f"{PREFIX}b", f"{PREFIX}c", "others"))
    for folder in (held, left, begun, others):
        (folder / "within").mkdir(parents=True)
    (others / LOCK).touch()
    lock = hold(held)
    os.close(hold(left))
    remove_left(tmp_path)
    assert held.exists() and begun.exists() and others.exists() and not left.exists()
    os.close(lock)
    remove_left(tmp_path)
    assert not held.exists()
