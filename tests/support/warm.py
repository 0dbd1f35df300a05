"""Servers and commands of tests begin as copies of a process that has done their imports, as actors of their template.

Imports are three quarters of what a start costs, and a run of the tests starts hundreds of servers, and of commands
that look at them. A copy goes on as `python -m actorserve` would: a child of the test's process, with a folder,
an output and arguments of its own. Its environment is that of the process it is a copy of, but for names that no import
reads; with another one it is started cold. There are up to three of these processes, of which the second and third
are copies of the one before that go on importing: what torch brings, and transformers' layers.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from actorserve.actors.model.config_json import find_architecture
from actorserve.actors.options.config import ConfigError
from actorserve.actors.options.fields import SECRETS
from actorserve.actors.options.other_servers import KEY_VARIABLES
from actorserve.actors.options.sources import variable
from actorserve.actors.supervisor.processes.spawn import Process
from actorserve.actors.supervisor.processes.subreaper import PR_SET_CHILD_SUBREAPER
from tests.support.runs.original import ANSWER_BYTES, Imports

PACKAGE = Path(__file__).resolve().parents[2] / "tools" / "package"
MODULE = Path(__file__).with_name("runs") / "module.py"
ORIGINAL = str(MODULE.with_name("original.py"))
PIPE_BYTES = 1 << 16  # that a pipe has room for
IMPORTS_S = 120.0  # what they may take on a busy machine
COMMAND_S = 120.0
# How names begin that each test has otherwise, and that no import reads: a server looks at them once it runs.
OWN = (
    "TERM",
    "NO_COLOR",
    "COLUMNS",
    "LINES",
    "PYTEST_CURRENT_TEST",
    "FAKE_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "ACTORSERVE_ENGINE_SECRET",
    "TRITON_INTERPRET",
    "CC",
    "XDG_CACHE_HOME",  # the hub's client does, and is asked for no model of a folder
)
# What actors that a test has played set for themselves: no server is to have it from there, each sets its own.
LEFT = {
    *("TOKENIZERS_PARALLELISM", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "HF_HUB_DISABLE_PROGRESS_BARS"),
    *("TRANSFORMERS_VERBOSITY", "GLOO_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR"),
} - os.environ.keys()
AUTHORITIES = "SSL_CERT_DIR"  # where this process finds none
KEYS = (*map(variable, SECRETS), *KEY_VARIABLES)  # of whoever runs tests and benches, which send none
SAME_SUMS = "MKL_CBWR"  # for products in the tests' own process; servers compute as those of users do


class Copy:
    """What subprocess.Popen is of a process that was not made by it."""

    def __init__(self, pid: int) -> None:
        self._process = Process(pid)
        self.pid = pid
        self.stdout: BinaryIO | None = None

    def poll(self) -> int | None:
        return self._process.wait(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._process.wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a copy", timeout or 0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Original:
    """This process's end of one that is copied."""

    lock = threading.Lock()
    made: ClassVar[dict[Imports, _Original]] = {}

    def __init__(
        self, environment: Mapping[str, str], begin: Callable[[socket.socket], Copy | subprocess.Popen[bytes]]
    ) -> None:
        self.environment = environment
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(IMPORTS_S)
        with theirs:
            self._process = begin(theirs)
        atexit.register(self.close)

    @classmethod
    def having(cls, imports: Imports, environment: Mapping[str, str]) -> _Original:
        """The one of these imports; the first that is asked for says in which environment all of them are."""
        if imports not in cls.made:
            cls.made[imports] = (
                cls.having(Imports(imports - 1), environment)._go_on() if imports else cls._first(environment)
            )
        return cls.made[imports]

    @classmethod
    def _first(cls, environment: Mapping[str, str]) -> _Original:
        def begin(theirs: socket.socket) -> subprocess.Popen[bytes]:
            command = (sys.executable, ORIGINAL, str(theirs.fileno()))
            return subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)

        return cls(environment, begin)

    def _go_on(self) -> _Original:
        return _Original(self.environment, lambda theirs: self._ask([], [theirs.fileno()]))

    def copy(
        self, program: str, arguments: Sequence[str], folder: str, own: Mapping[str, str], outputs: Sequence[int]
    ) -> Copy:
        return self._ask([os.getpid(), folder, own, program, *arguments], outputs)

    def _ask(self, request: Sequence[Any], fds: Sequence[int]) -> Copy:
        with _adopting():
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
            return Copy(int(self._control.recv(ANSWER_BYTES)))

    def close(self) -> None:
        self._control.close()
        self._process.wait()


def start_warm(
    program: str,
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    imports: Imports | None = None,
) -> Copy | None:
    """A program, by its file, or the command line, in this folder; None if nothing is there to be copied for it."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        copy = _copy(program, arguments, folder, environment, [write_end], imports)
    finally:
        os.close(write_end)
    if copy is None:
        os.close(read_end)
    else:
        copy.stdout = os.fdopen(read_end, "rb")
    return copy


def run_command(*arguments: str, wait_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """`actorserve ARGUMENTS…` with its output, and nothing to read; fails if it does not end."""
    return _run("", arguments, server_environment(), wait_s)


def run_with_input(said: str, *arguments: str, **own: str) -> subprocess.CompletedProcess[str]:
    """The same with this to read; `own`: names of OWN."""
    return _run("", arguments, server_environment(own), COMMAND_S, said)


def start_command(*arguments: str) -> Copy | subprocess.Popen[bytes]:
    """The same as a process that goes on, with all that it says in its `stdout`."""
    environment = server_environment()
    return start_warm("", arguments, os.getcwd(), environment) or subprocess.Popen(
        [sys.executable, "-m", "actorserve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def start_on_terminal(terminal: int, *arguments: str, **own: str) -> Copy | subprocess.Popen[bytes]:
    """`actorserve ARGUMENTS…` on this terminal, whose Ctrl-C is its own; `own`: names of OWN."""
    environment = server_environment(own)
    files = [terminal] * 3
    return _copy("", arguments, os.getcwd(), environment, files) or subprocess.Popen(
        [sys.executable, "-m", "actorserve", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )


def run_module(name: str, *arguments: str, wait_s: float = COMMAND_S, **own: str) -> subprocess.CompletedProcess[str]:
    """A module of the tests as a program that has imported torch, and nothing else; `own`: names of OWN."""
    return _run(str(MODULE), [name, *arguments], server_environment(own), wait_s)


def run_program(file: Path, *arguments: str, wait_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """A program of this repository as a process that has imported torch, and actors' modules."""
    return _run(str(file), arguments, server_environment(), wait_s)


def _run(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], wait_s: float, said: str = ""
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *([program] if program else ["-m", "actorserve"]), *arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with _pipe_with(said) as given:
            files = [given, output.fileno(), errors.fileno()]
            copy = _copy(program, arguments, os.getcwd(), environment, files)
        if copy is None:
            return subprocess.run(line, capture_output=True, text=True, timeout=wait_s, input=said, env=environment)
        try:
            status = copy.wait(wait_s)
        except subprocess.TimeoutExpired:
            copy.kill()
            copy.wait()
            raise
        outputs = []
        for file in (output, errors):
            file.seek(0)
            outputs.append(file.read().decode())
    return subprocess.CompletedProcess(line, status, *outputs)


@contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    read_end, write_end = os.pipe()
    try:
        with open(write_end, "wb") as pipe:
            data = text.encode()
            assert len(data) <= PIPE_BYTES
            pipe.write(data)
        yield read_end
    finally:
        os.close(read_end)


def server_environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of this process, in which the package is found, and `own` besides."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(PACKAGE)]))
    inherited = {name: value for name, value in os.environ.items() if name not in (SAME_SUMS, AUTHORITIES, *KEYS)}
    return {**inherited, "PYTHONPATH": path, **(own or {})}


def _copy(
    program: str,
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    outputs: Sequence[int],
    imports: Imports | None = None,
) -> Copy | None:
    shared, own = _split(environment)
    if imports is None:
        imports = Imports.LAYERS if _wants_layers(arguments) else Imports.TENSORS
    with _Original.lock:
        original = _Original.having(imports, shared)
        return original.copy(program, arguments, folder, own, outputs) if original.environment == shared else None


def _wants_layers(arguments: Sequence[str]) -> bool:
    """Does the worker of a model in these folders import transformers' layers (protocol/served.py)?"""
    files = (os.path.join(one.partition(",")[0], "config.json") for one in arguments if not one.startswith("-"))
    return "transformers" in arguments or any(os.path.isfile(file) and not _has_own(file) for file in files)


def _has_own(config: str) -> bool:
    try:
        values = json.loads(Path(config).read_text())
        return not isinstance(values, dict) or find_architecture(values, "auto") is not None
    except (ConfigError, ValueError):  # such a server does not start
        return True


def _split(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    own = {name: value for name, value in environment.items() if name.startswith(OWN)}
    return {name: value for name, value in environment.items() if name not in own and name not in LEFT}, own


@contextmanager
def _adopting() -> Iterator[None]:
    """Descendants whose parent ends meanwhile become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for on in (1, 0):
        if libc.prctl(PR_SET_CHILD_SUBREAPER, on) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        if on:
            yield
