"""`actorserve top` against a real server: in a script, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable

import pytest
import requests

from tests.support.server import Server
from tests.support.warm import server_environment

from .commands import DEADLINE_S, HEADERS, port_of, run

REQUEST: dict[str, str | int | bool] = {
    "model": "actorserve-demo",
    "prompt": "Hello",
    "max_tokens": 100,
    "ignore_eos": True,
}
SCREEN_BACK = "\x1b[?1049l"  # what was on the terminal before is there again
FIGURES = (
    "tokens/s",
    "prompt tokens/s",
    "requests/s",
    "running / waiting",
    "KV in use",
    "prefix-cache hits",
    "first token (50 / 95 %)",
    "between tokens (50 / 95 %)",
)


class Terminal:
    """`top` on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.own, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 120))
        self.before = termios.tcgetattr(theirs)
        command = [sys.executable, "-m", "actorserve", "top", *arguments]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        self.theirs, self.shown = theirs, ""

    def until(self, text: str) -> None:
        """It shows this, in what was not waited for before."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.own], [], [], left)[0], f"no {text!r} in {self.shown!r}"
            self.shown += os.read(self.own, 1 << 16).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)
        os.close(self.theirs)

    def end(self) -> int:
        """Its exit status; the terminal is as before."""
        status = self.process.wait(DEADLINE_S)
        assert termios.tcgetattr(self.theirs) == self.before
        return status


def test_once_under_load(server: Server) -> None:
    going = True

    def ask() -> None:
        while going:
            answer = requests.post(f"{server.base_url}/v1/completions", json=REQUEST, headers=HEADERS, timeout=60)
            assert answer.status_code == 200

    asks = threading.Thread(target=ask)
    asks.start()
    try:
        done = run("top", "--once", "--interval", "1", "--server", port_of(server))
    finally:
        going = False
        asks.join()
    assert done.returncode == 0 and not done.stderr
    values = dict(re.split(r"  +", line)[:2] for line in done.stdout.split("\n\n")[1].splitlines())
    assert set(FIGURES) <= set(values)
    assert float(values["tokens/s"].replace(",", "")) > 0 and values["running / waiting"] in ("1 / 0", "0 / 0")
    assert re.fullmatch(r"[\d.]+ m?s / [\d.]+ m?s", values["between tokens (50 / 95 %)"])
    assert [line.split()[0] for line in done.stdout.split("\n\n")[2].splitlines()[1:]] == [
        *(
            "supervisor",
            "worker",
            "scheduler",
            "detokenizer-0",
            "renderer-0",
            "frontend-0",
            "template",
            "template-worker",
        )
    ]


def test_bars_on_a_terminal_that_has_none(server: Server) -> None:
    command = [sys.executable, "-m", "actorserve", "top", "--once", "--interval", "0.1", "--server", port_of(server)]
    ascii_only = server_environment() | {"PYTHONIOENCODING": "ascii"}
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]  # nor anything to read, as of some schedulers
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0 and not done.stderr and "tokens/s" in done.stdout


def test_live_until_q(server: Server) -> None:
    with Terminal("--interval", "0.1", "--server", port_of(server)) as terminal:
        terminal.until("supervisor")
        terminal.until("tokens/s")
        scheduler = server.pids()["scheduler"]
        os.kill(scheduler, signal.SIGSTOP)
        try:
            terminal.until("stopped")
        finally:
            os.kill(scheduler, signal.SIGCONT)
        os.write(terminal.own, b"x")
        terminal.until("tokens/s")
        os.write(terminal.own, b"q")
        terminal.until(SCREEN_BACK)
        assert terminal.end() == 0


def test_ctrl_c_ends_it(server: Server) -> None:
    with Terminal("--interval", "0.1", "--server", port_of(server)) as terminal:
        terminal.until("tokens/s")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(SCREEN_BACK)
        assert terminal.end() == 0


def test_the_servers_end_ends_it(another: Callable[[], Server]) -> None:
    with another() as server, Terminal("--interval", "0.1", "--server", port_of(server)) as terminal:
        terminal.until("tokens/s")
        server.stop()
        terminal.until(f"the server on port {port_of(server)} has ended")
        assert terminal.end() == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((), "--once"), (("--once", "--interval", "0"), "--interval"), (("--once", "--interval", "nan"), "--interval")],
)
def test_what_cannot_be(arguments: tuple[str, ...], words: str) -> None:
    done = run("top", *arguments)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""
