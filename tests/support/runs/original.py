"""The process that servers and commands of tests are copies of (warm.py); copies of it, too, that go on importing."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn

from actorserve.actors.options.fields import option_fields
from actorserve.actors.protocol.fingerprint import message_types
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.runtime.signals import die_with_parent
from actorserve.actors.supervisor.processes.prefork import ALSO, SPIN_S

REQUEST_BYTES, ANSWER_BYTES = 1 << 17, 32
LOOKS = tuple(
    f"observer.{name}" for name in ("report", "table", "requests", "why.explanation", "why.text", "trace", "screen")
)
LAYERS = ("adapter.load", "encoder_decoder.load", "pooling.load")  # of the worker
COMMANDS = (*LOOKS, "observer.ask", "protocol.sockets.control_wire", "supervisor.timeouts")
HUGE_PAGE = 1 << 21
MADV_COLLAPSE = 25  # Linux 6.1 or newer; others, and what cannot be in large pages, stay as they are


class Imports(IntEnum):
    """What a copy has imported: each of these all that the ones before have."""

    PLAIN = 0  # what a server's first template has
    TENSORS = 1  # and its workers'
    LAYERS = 2  # of a model that layers of transformers compute


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
        request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
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
        parent = os.getpid()
        inner = os.fork()
        if inner:
            os.write(write_end, str(inner).encode())
            os._exit(0)
        control.close()
        os.close(read_end)
        os.close(write_end)
        if request:
            _die_with_test(parent, request[0])
            _become(fds, *request[1:])
        _go_on(socket.socket(fileno=fds[0]), Imports(imports + 1))
    os.close(write_end)
    os.waitpid(between, 0)
    number = int(os.read(read_end, ANSWER_BYTES))
    os.close(read_end)
    return number


def _die_with_test(parent: int, test: int) -> None:
    """A run of the tests that is killed leaves no servers: the kernel ends them with the process that adopts them."""
    while os.getppid() == parent:
        time.sleep(SPIN_S)  # nothing tells a process that it has a new parent
    die_with_parent()
    if os.getppid() != test:
        os._exit(1)


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


def _take(files: Sequence[int]) -> None:
    """One for all that it says; or what it reads, its output and its errors: on a terminal, that is its own then."""
    standard = {1: files[0], 2: files[0]} if len(files) == 1 else dict(enumerate(files))
    for number, file in standard.items():
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if len(files) > 1:  # as Python would have begun
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if len(files) > 1 and os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _become(files: Sequence[int], folder: str, own: Mapping[str, str], program: str, *arguments: str) -> NoReturn:
    """Its whole life. At its end nobody needs Python to take apart what is in memory."""
    status = 1
    try:
        _take(files)
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
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code and status is not end.code:
            print(end.code, file=sys.stderr)  # as Python does
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
