"""The chat as people meet it: on a terminal, through pipes, with a server that runs or one that is started for it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.observer.commands import port_of
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.warm import run_with_input, start_on_terminal

DEADLINE_S = 60.0
ACTORSERVE = (sys.executable, "-m", "actorserve")
CAPITAL, PARIS = "What is the capital of France?", "The capital of France is Paris.\n"
KEY = "a-key"


def chat(*arguments: str, said: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return run_with_input(said, *arguments, **env)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, **env: str) -> None:
        ours, theirs = pty.openpty()
        self.process = start_on_terminal(theirs, *arguments, TERM="xterm", NO_COLOR="1", **env)
        os.close(theirs)
        self._fd = ours
        self._seen = ""

    def wait_for(self, text: str) -> None:
        """What it shows next has this in it; what stands behind it is looked at by the next wait."""
        while text not in self._seen:
            self._seen += os.read(self._fd, 4096).decode(errors="replace")  # the test's own time limit ends it
        self._seen = self._seen.partition(text)[2]

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C at the prompt. One that comes between the prompt and readline's wait is heard at the next key only."""
        while text not in self._seen:
            self.type("\x03")
            while text not in self._seen and select.select([self._fd], [], [], 2.0)[0]:
                self._seen += os.read(self._fd, 4096).decode(errors="replace")
        self.wait_for(text)

    def wait_for_more(self) -> None:
        """It shows something behind what was waited for."""
        while not self._seen.strip():
            self._seen += os.read(self._fd, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def ends(self) -> int:
        """Its status, after Ctrl-D at the next prompt: one that comes earlier is none to readline."""
        self.wait_for("> ")
        self.type("\x04")
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Server]:
    with Server("--worker", "scripted", "--scripted-step-ms", "20", "--api-key", KEY) as server:
        yield server


def test_through_a_pipe_each_line_is_a_message(demo_server: Server) -> None:
    done = chat("chat", "--server", port_of(demo_server), said=f"/system Be brief.\n{CAPITAL}\n\n/exit\nmore\n")
    assert (done.stdout, done.stderr, done.returncode) == (PARIS, "", 0)


def test_one_message(demo_server: Server) -> None:
    server = ("--url", f"{demo_server.base_url}/v1", "--temperature", "0")
    assert chat("chat", *server, "--message", CAPITAL).stdout == PARIS
    first, rest = CAPITAL.split(" ", 1)
    assert chat("chat", *server, "--message", "-", said=CAPITAL).stdout == PARIS
    assert chat("chat", *server, "-q", first, "-q", "-", said=rest).returncode == 0
    short = chat("chat", *server, "-q", CAPITAL, "--max-tokens", "2")
    assert short.returncode == 0 and PARIS.startswith(short.stdout.strip()) and short.stdout != PARIS


def test_errors_have_a_status(demo_server: Server, slow_server: Server) -> None:
    wrong = chat("chat", "--server", port_of(demo_server), "--model", "other", said=f"{CAPITAL}\n")
    assert (wrong.stdout, wrong.returncode) == ("", 1) and "error: The model `other`" in wrong.stderr.replace("'", "`")
    locked = chat("chat", "--url", slow_server.base_url, said="Hello\n")
    assert locked.returncode == 1 and "ACTORSERVE_API_KEY" in locked.stderr and locked.stderr.count("\n") == 1
    keys = {"ACTORSERVE_API_KEY": KEY}
    opened = chat("chat", "--url", slow_server.base_url, "--max-tokens", "3", said="Hello\n", **keys)
    assert opened.returncode == 0 and opened.stdout.strip()
    empty = chat("chat", "--server", port_of(demo_server), "--message", " ")
    assert empty.returncode == 2 and "--message: it is empty" in empty.stderr


def test_what_follows_a_text(demo_server: Server, slow_server: Server) -> None:
    """As an argument to the letter, or from standard input without its last newline."""
    body = {"prompt": "The capital of", "max_tokens": 8, "temperature": 0}
    with http_client(demo_server) as client:
        wanted = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"] + "\n"
    asked = ("complete", "--max-tokens", "8", "--temperature", "0", "--server", port_of(demo_server))
    assert chat(*asked, "The capital of").stdout == chat(*asked, said="The capital of\n").stdout == wanted
    empty = chat(*asked, said="\n")
    assert (empty.stdout, empty.returncode) == ("", 2) and "PROMPT: it is empty" in empty.stderr
    target = ("--url", slow_server.base_url, "--max-tokens", "3")
    locked, opened = chat("complete", *target, "Hello"), chat("complete", *target, "--api-key", KEY, "-", said="Hello")
    assert locked.returncode == 1 and "ACTORSERVE_API_KEY" in locked.stderr and locked.stderr.count("\n") == 1
    assert opened.returncode == 0 and opened.stdout.strip() and not opened.stderr


def test_ctrl_c_ends_what_follows_a_text(slow_server: Server) -> None:
    command = ("complete", "--server", port_of(slow_server), "--api-key", KEY, "--max-tokens", "3000", "Go on")
    with Terminal(*command) as terminal:
        terminal.wait_for_more()
        terminal.type("\x03")
        terminal.wait_for("interrupted")
        assert terminal.process.wait(DEADLINE_S) == 130


def test_a_conversation_on_a_terminal(demo_server: Server) -> None:
    with Terminal("chat", "--server", port_of(demo_server)) as terminal:
        terminal.wait_for("actorserve-demo at http://")
        terminal.wait_for("> ")
        terminal.type(f"{CAPITAL}\n")
        terminal.wait_for(PARIS.strip())
        terminal.wait_for("> ")
        terminal.type('"""Hello\nthere"""\n')
        terminal.wait_for("Hello!")
        terminal.wait_for("> ")
        terminal.type("/system Be kind.\n")
        terminal.wait_for("Be kind.\r\n")
        terminal.interrupt_until("Ctrl-D or /exit ends")
        assert terminal.ends() == 0


def test_ctrl_c_ends_the_answer_and_not_the_chat(slow_server: Server) -> None:
    command = ("chat", "--server", port_of(slow_server), "--max-tokens", "3000")
    with Terminal(*command, ACTORSERVE_API_KEY=KEY) as terminal:
        terminal.wait_for("> ")
        terminal.type("Go on and on\n")
        terminal.wait_for("and on\r\n")
        terminal.wait_for_more()
        terminal.type("\x03")
        terminal.wait_for("interrupted")
        slow_server.wait_for(r"/v1/chat/completions 499;")
        assert terminal.ends() == 0


def test_run_starts_a_server_and_stops_it() -> None:
    with Terminal("run", "--served-model-name", "mine", "--port", "0") as terminal:
        terminal.wait_for("mine at http://")
        terminal.wait_for("> ")
        child = psutil.Process(terminal.process.pid).children()[0]
        started = [child, *child.children(recursive=True)]
        terminal.interrupt_until("ends")
        terminal.type(f"{CAPITAL}\n")
        terminal.wait_for(PARIS.strip())
        assert all(process.is_running() for process in started), "Ctrl-C was for the chat alone"
        assert terminal.ends() == 0
    assert not psutil.wait_procs(started, timeout=DEADLINE_S)[1]


def test_run_says_why_there_is_no_server(tmp_path: object) -> None:
    done = chat("run", f"{tmp_path}/none", said="Hello\n")
    assert done.returncode == 1 and f"there is no folder {tmp_path}/none" in done.stderr
    wrong = chat("run", "--port", "80000", said="Hello\n")
    assert wrong.returncode == 2 and "--port: 80000 is out of range" in wrong.stderr


def test_what_a_model_writes_does_nothing_to_the_terminal() -> None:
    from actorserve.actors.chat.client import VISIBLE

    assert "a\x1b[2J\x07\x9b\r\n\tb👩‍💻".translate(VISIBLE) == "a␛[2J␇\ufffd␍\n\tb👩‍💻"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join(map(chr, range(256))).translate(VISIBLE))


def test_nobody_reads_any_more(demo_server: Server) -> None:
    command = [*ACTORSERVE, "chat", "--server", port_of(demo_server)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, input=CAPITAL, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) in ((1, ""), (-signal.SIGPIPE, ""))
