"""tools/trial: faults and hostile input by plain sockets, with no code of the server's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRIAL = Path(__file__).resolve().parents[2] / "tools" / "trial"
EVERY = (
    "expect_continue",
    "sigterm",
    "giving_up",
    "descriptors",
    "all_connections",
    "keys",
    "big_bodies",
    "hostile",
    "features",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TRIAL), *arguments], capture_output=True, text=True)


def test_it_knows_its_trials() -> None:
    listed = run("--list")
    assert listed.returncode == 0 and [line.split()[0] for line in listed.stdout.splitlines()] == [
        *EVERY,
        "rows",
        "agents",
        "clients",
        "weights",
    ]
    unknown = run("nothing")
    assert unknown.returncode == 2 and "unknown trial nothing" in unknown.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("trial", EVERY)
def test_nothing_is_wrong(trial: str) -> None:
    done = run(trial)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not shutil.which("npm"), reason="npm installs the agents")
def test_coding_agents_hold_a_session(tmp_path: Path) -> None:
    done = run("agents", "--npm", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clients_hold_a_session(tmp_path: Path) -> None:
    done = run("clients", "--venv", str(tmp_path))
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("no package index")
    assert done.returncode == 0, done.stdout + done.stderr
