"""Scripts that use an LLM object, run as processes of their own, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.support.server import VANISH_S
from tests.support.warm import PACKAGE

WAIT_S = 60.0
SCRIPTED = 'worker="scripted", scripted_step_ms=5'
LONG = """
from actorserve import LLM, SamplingParams
llm = LLM(max_num_seqs=4, {how})
long = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)
short = SamplingParams(temperature=0, max_tokens=4)
"""


def start(command: list[str], folder: Path, told: bytes | None = None) -> subprocess.Popen[bytes]:
    """A process that works in `folder`, as all processes that it starts do."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(PACKAGE)]))
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    if told is not None:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()
        process.stdin = None
    return process


def processes(folder: Path) -> list[psutil.Process]:
    """All that live and work in this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
    return found


def left(folder: Path) -> list[psutil.Process]:
    """Those that are still there a moment after the end."""
    deadline = time.monotonic() + VANISH_S
    while (found := processes(folder)) and time.monotonic() < deadline:
        psutil.wait_procs(found, timeout=0.1)
    return found


def actors_of(pid: int) -> dict[str, int]:
    """Process ids by actors' names, of the LLM object in this process."""
    found: dict[str, int] = {}
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            title = " ".join(child.cmdline())
            if title.startswith("actorserve: "):
                found[title.removeprefix("actorserve: ").strip()] = child.pid
    return found
