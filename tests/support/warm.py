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
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

from actorserve.actors.model.config_json import find_architecture
from actorserve.actors.options.config import ConfigError
from actorserve.actors.options.fields import option_fields
from actorserve.actors.protocol.fingerprint import message_types
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.supervisor.processes.prefork import ALSO
from actorserve.actors.supervisor.processes.spawn import Process
from actorserve.actors.supervisor.processes.subreaper import PR_SET_CHILD_SUBREAPER

PACKAGE = Path(__file__).resolve().parents[2] / "tools" / "package"
MODULE = Path(__file__).with_name("runs") / "module.py"
REQUEST_BYTES, ANSWER_BYTES = 1 << 17, 32
LOOKS = tuple(
    f"observer.{name}" for name in ("report", "table", "requests", "why.explanation", "why.text", "trace", "screen")
)
LAYERS = ("adapter.load", "encoder_decoder.load", "pooling.load")  # of the worker
COMMANDS = (*LOOKS, "observer.ask", "protocol.sockets.control_wire", "supervisor.timeouts")
IMPORTS_S = 120.0  # what they may take on a busy machine
COMMAND_S = 120.0
# How names begin that each test has otherwise, and that no import reads: a server looks at them once it runs.
OWN = ("PYTEST_CURRENT_TEST", "FAKE_", "NOTIFY_SOCKET", "WATCHDOG_", "ACTORSERVE_ENGINE_SECRET", "TRITON_INTERPRET")
# What actors that a test has played set for themselves: no server is to have it from there, each sets its own.
LEFT = {
    *("TOKENIZERS_PARALLELISM", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "HF_HUB_DISABLE_PROGRESS_BARS"),
    *("TRANSFORMERS_VERBOSITY", "GLOO_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR"),
} - os.environ.keys()
HUGE_PAGE = 1 << 21
MADV_COLLAPSE = 25  # Linux 6.1 or newer; others, and what cannot be in large pages, stay as they are
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

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Imports(IntEnum):
    """What a copy has imported: each of these all that the ones before have."""

    PLAIN = 0  # what a server's first template has
    TENSORS = 1  # and its workers'
    LAYERS = 2  # of a model that layers of transformers compute


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
            command = (sys.executable, __file__, str(theirs.fileno()))
            return subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)

        return cls(environment, begin)

    def _go_on(self) -> _Original:
        return _Original(self.environment, lambda theirs: self._ask([], [theirs.fileno()]))

    def copy(
        self, program: str, arguments: Sequence[str], folder: str, own: Mapping[str, str], outputs: Sequence[int]
    ) -> Copy:
        return self._ask([folder, own, program, *arguments], outputs)

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


def run_module(name: str, *arguments: str, wait_s: float = COMMAND_S, **own: str) -> subprocess.CompletedProcess[str]:
    """A module of the tests as a program that has imported torch, and nothing else; `own`: names of OWN."""
    return _run(str(MODULE), [name, *arguments], server_environment(own), wait_s)


def run_program(file: Path, *arguments: str, wait_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """A program of this repository as a process that has imported torch, and actors' modules."""
    return _run(str(file), arguments, server_environment(), wait_s)


def _run(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], wait_s: float
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *([program] if program else ["-m", "actorserve"]), *arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        files = [output.fileno(), errors.fileno()]
        copy = _copy(program, arguments, os.getcwd(), environment, files)
        if copy is None:
            return subprocess.run(
                line, capture_output=True, text=True, timeout=wait_s, stdin=subprocess.DEVNULL, env=environment
            )
        try:
            status = copy.wait(wait_s)
        except subprocess.TimeoutExpired:
            copy.kill()
            copy.wait()
            raise
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(line, status, *said)


def server_environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of this process, in which the package is found, and `own` besides."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(PACKAGE)]))
    inherited = {name: value for name, value in os.environ.items() if name != SAME_SUMS}
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


def take_huge_pages() -> None:
    """What this process has in memory so far: forking it and ending the copies costs by the page, and it has 40,000
    small ones once it has imported torch. Copies share large ones as well; of what one writes to, it takes 4 KB.
    """
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file]
    for place, access, _, _, _, *name in lines:
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(number, 16) for number in place.split("-"))
            first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if first < last:
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


@contextmanager
def _adopting() -> Iterator[None]:
    """Descendants whose parent ends meanwhile become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for on in (1, 0):
        if libc.prctl(PR_SET_CHILD_SUBREAPER, on) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        if on:
            yield


# --- the process that is copied --------------------------------------------------------------------------------------


def main() -> None:
    """Import what needs no tensors, and make a copy for each request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for tests and servers
    gc.disable()
    _import_first()
    _serve(control, Imports.PLAIN)


def _serve(control: socket.socket, imports: Imports) -> None:
    gc.freeze()
    take_huge_pages()
    while True:
        request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
        if not request:  # nobody can ask any more
            return
        copy = _fork_twice(control, fds, imports, *json.loads(request))
        for fd in fds:
            os.close(fd)
        control.send(str(copy).encode())


def _fork_twice(control: socket.socket, fds: Sequence[int], imports: Imports, *request: Any) -> int:
    """The process id of a copy. The one in between has ended, so that whoever adopts now has adopted it."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if not between:
        inner = os.fork()
        if inner:
            os.write(write_end, str(inner).encode())
            os._exit(0)
        control.close()
        os.close(read_end)
        os.close(write_end)
        if request:
            _become(fds, *request)
        _go_on(socket.socket(fileno=fds[0]), Imports(imports + 1))
    os.close(write_end)
    os.waitpid(between, 0)
    number = int(os.read(read_end, ANSWER_BYTES))
    os.close(read_end)
    return number


def _go_on(control: socket.socket, imports: Imports) -> NoReturn:
    """The life of the next one that is copied."""
    status = 1
    try:
        from actorserve.actors.worker.imports import import_early

        import_early(*(LAYERS if imports is Imports.LAYERS else ()))
        _serve(control, imports)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _import_first() -> None:
    """What a server's processes import, but for torch and what depends on their model."""
    from setproctitle import getproctitle

    getproctitle()  # it looks for the place of titles
    for name in (*(kind.module for kind in KINDS.values() if kind.prefork), *ALSO):
        importlib.import_module(name)
    for name in ("cli", "commands.launch", "supervisor.launch", *COMMANDS):
        importlib.import_module(f"actorserve.actors.{name}")
    option_fields()  # what each of them makes of the code alone, and keeps
    message_types()
    assert "torch" not in sys.modules, "servers start without it, and some of them must not find it"


def _become(outputs: Sequence[int], folder: str, own: Mapping[str, str], program: str, *arguments: str) -> NoReturn:
    """Its whole life. At its end nobody needs Python to take apart what is in memory. A command, which has an output of
    its own for errors, reads nothing.
    """
    status = 1
    try:
        if len(outputs) == 2:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(outputs[0], 1)
        os.dup2(outputs[-1], 2)
        for output in outputs:
            os.close(output)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.enable()
        os.environ.update(own)
        os.chdir(folder)
        sys.path[0] = os.path.dirname(program) or folder
        sys.argv[1:] = arguments
        if program:
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module("actorserve", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
