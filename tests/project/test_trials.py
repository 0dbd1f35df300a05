"""tools/trial: faults and hostile input by plain sockets, with no code of the server's."""

from __future__ import annotations

import importlib
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    "mixtures",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TRIAL), *arguments], capture_output=True, text=True)


def test_it_knows_its_trials(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds its folder
    main: Callable[[], int] = runpy.run_path(str(TRIAL))["main"]
    monkeypatch.setattr(sys, "argv", ["trial", "--list"])
    assert main() == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *EVERY,
        "rows",
        "agents",
        "clients",
        "weights",
    ]
    monkeypatch.setattr(sys, "argv", ["trial", "nothing"])
    with pytest.raises(SystemExit) as unknown:
        main()
    assert unknown.value.code == 2 and "unknown trial nothing" in capsys.readouterr().err


def test_without_torch_it_starts() -> None:
    without = "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['trial', '--list']; "
    done = subprocess.run(
        [sys.executable, "-c", f"{without}runpy.run_path({str(TRIAL)!r}, run_name='__main__')"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"passed": 2, "skipped": 1}, "yes"),
        ({"skipped": 1}, "skipped"),
        ({"passed": 1, "failed": 1}, "broken"),
        ({}, "broken"),
    ],
)
def test_a_row_is_what_its_test_is(told: dict[str, int], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is skipped, as without ray, is none that is broken."""
    monkeypatch.setattr(sys, "path", [str(TRIAL.parent), *sys.path])
    rows: Any = importlib.import_module("trials.rows")
    test = "tests/server/parallel/test_ray.py::test_a_node_is_lost_in_mid_stream"
    assert rows._judge(["Ray", "yes", "by it", f"`{test}`"], [], {test: Counter(told)})[0] == state
