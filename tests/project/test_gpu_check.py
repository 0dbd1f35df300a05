"""tools/gpu_check: its table, what it does about parts that fail or take too long, and all of it on toys."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

CHECK = Path(__file__).resolve().parents[2] / "tools" / "gpu_check"


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    found = runpy.run_path(str(CHECK))
    found["run"].__globals__["LEAST_S"] = 0.1
    return found


def test_a_part_that_is_well(check: dict[str, Any]) -> None:
    finding = '{"what": "a", "value": 2.5, "unit": "ms", "goal": "at most 3", "ok": true}'
    lines, well = check["run"]("steps", ["-c", f"print('no finding'); print('{finding}')"], 60, dict(os.environ))
    assert well and "| a | 2.5 | ms | at most 3 | yes |" in lines


@pytest.mark.parametrize(
    ("program", "limit", "said"),
    [
        ('print(\'{"what": "a", "value": 4, "unit": "ms", "goal": "at most 3", "ok": false}\')', 60, "**no**"),
        ("raise SystemExit('it broke')", 60, "it broke"),
        ("import threading; threading.Event().wait()", 0.5, "ended with cut after 0 s"),
        ("", 0.1, "no time was left"),
    ],
)
def test_a_part_that_is_not(check: dict[str, Any], program: str, limit: float, said: str) -> None:
    lines, well = check["run"]("steps", ["-c", program], limit, dict(os.environ))
    assert not well and said in "\n".join(lines)


def test_where_there_is_no_git_and_no_gpu(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert check["head"]()[0].endswith("no GPU, commit unknown")


def test_what_decides_comes_first_and_all_of_it_has_time(check: dict[str, Any]) -> None:
    names = [name for name, _, _ in check["PARTS"]]
    assert names.index("the server beside transformers") < names.index("kernels' times") < len(names) - 1
    before_tests = sum(limit for name, _, limit in check["PARTS"] if "tests" not in name)
    assert before_tests <= 1.2 * check["WHOLE_S"], "limits are for parts that go wrong; what they take is less"


def test_a_part_that_is_cut_leaves_no_process(check: dict[str, Any], tmp_path: Path) -> None:
    """A server that a part had started would have the device's memory."""
    note = tmp_path / "pid"
    program = (
        "import subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, threading; signal.signal(15, signal.SIG_IGN); "
        "threading.Event().wait()'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "threading.Event().wait()"
    )
    lines, well = check["run"]("steps", ["-c", program], 4.0, dict(os.environ))
    assert not well and any("cut after" in line for line in lines)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(note.read_text())).wait(20)
    assert not psutil.pid_exists(int(note.read_text()))


def test_what_fails_within_a_part_is_a_finding(check: dict[str, Any]) -> None:
    program = (
        "from tools.gpu.report import say, surviving\n"
        "with surviving('one'):\n    raise RuntimeError('it broke')\n"
        "say('another', 1)"
    )
    lines, well = check["run"]("steps", ["-c", program], 60, dict(os.environ))
    text = "\n".join(lines)
    assert not well and "| one | RuntimeError: it broke |" in text and "| another | 1.0 |" in text
    assert "Traceback" in text, "what was said of it is in the table, too"


def test_the_list_of_parts() -> None:
    done = subprocess.run([sys.executable, CHECK, "--list", "--only", "kernels"], capture_output=True, text=True)
    assert done.returncode == 0 and "kernels' times" in done.stdout and "the server" not in done.stdout


@pytest.mark.slow  # the interpreter takes minutes for the steps of a toy
def test_all_of_it_on_toys(check: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    subprocess.run([sys.executable, CHECK, "--tiny", "--out", out], check=True, capture_output=True, timeout=2400)
    table = out.read_text()
    assert table.count("ended with 0.") == len(check["TINY_PARTS"]) and "**no**" not in table
    assert len(re.findall(r"^\| .* \|$", table, re.MULTILINE)) > 60
