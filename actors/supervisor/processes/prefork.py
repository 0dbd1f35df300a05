"""The template processes: they have done the imports of actors, and fork them warm.

One has all kinds' modules, none of which needs tensors. A kind whose actors import much more once they run, as workers
do torch, has a template of its own, which is forked by the first as soon as that has the kind's module, and does these
early imports while the first goes on with its own. At the server's start the first is a copy of the supervisor, which
has some of the imports, made before there is an event loop; later ones, and those of a restart, are started cold.

They run nothing else: no thread, no loop, no event loop to inherit. What they are asked on their sockets stands in
protocol/sockets/prefork_wire.py. They fork twice: the one in between ends at once, so that an actor, or a template,
becomes the child of the supervisor, which is the subreaper. A check, and the fingerprint of their code, is a child's
(supervisor/rolling/preflight.py).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Container, Sequence
from typing import NoReturn

from setproctitle import setproctitle

from ...protocol.kinds import KINDS, OWN_TEMPLATE, TEMPLATE, find
from ...protocol.sockets.prefork_wire import (
    LAYOUT,
    MOST_DESCRIPTORS,
    PING,
    REQUEST_BYTES,
    answer,
    read_branch,
    read_check,
    read_fork_descriptors,
)
from ...runtime.aiohttp_import import import_aiohttp
from ...runtime.process import live
from ...runtime.signals import die_with_supervisor, leave_signals_to_supervisor
from ..rolling.preflight import check, tell_layout
from .code_pages import let_go
from .mappings import mapped_ranges, read_mappings
from .memory_file import map_function, put_away

ALSO = ("tokenizers",)  # what actors import only once they run
ADOPTION_S = 10.0  # what the one in between gets to end
SPIN_S = 0.0002


def main() -> None:
    """Serve the socket whose descriptor the command line names, until its other end is closed; behind it the kind whose
    own template this is, if it is one, and modules that are imported beside those of the kind.
    """
    _, control, *kind = sys.argv
    supervisor = os.getppid()
    die_with_supervisor(supervisor)
    leave_signals_to_supervisor()
    _Template(supervisor, socket.socket(fileno=int(control)), kind).serve()


def take_over(supervisor: int, control: int, output: int, kept: Container[int]) -> NoReturn:
    """The life of the first template as a copy of the supervisor: it drops what a program that starts would not have.

    The callers hold all objects of the supervisor, so that none is finalised; descriptors are closed, but for `kept`.
    """

    def begin() -> None:
        os.setsid()  # Ctrl-C is for the supervisor alone
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, standard in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(fd, standard)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd != control and fd not in kept:
                _close(fd)
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(write_through=True)
        faulthandler.enable()
        logging.getLogger().handlers.clear()
        sys.excepthook = sys.__excepthook__
        if not sys.flags.safe_path:
            del sys.path[0]  # no json.py of the user's folder is taken for ours
        die_with_supervisor(supervisor)
        leave_signals_to_supervisor()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # in a container the supervisor has a handler
        _Template(supervisor, socket.socket(fileno=control)).serve()

    _live_and_end(begin)


def _live_and_end(life: Callable[[], int | None]) -> NoReturn:
    """The rest of a process's life; it ends with the status that this returns, 0 if none, and 1 if it fails. Nothing of
    the interpreter is taken down: it is a copy of another process's.
    """
    status = 1
    try:
        status = life() or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):  # that which has listed them
        os.close(fd)


class _Template:
    """One of these processes."""

    def __init__(self, supervisor: int, control: socket.socket, branch: Sequence[str] = ()) -> None:
        """`branch`: the kind whose early imports this one does, and modules beside them; none: those of all others."""
        self._supervisor = supervisor
        self._control = control
        kind, *self._modules = branch or ("",)
        self._kind = kind
        self._has_imports = False
        self._before = mapped_ranges()
        setproctitle(f"actorserve: {OWN_TEMPLATE.format(kind) if kind else TEMPLATE}")

    def serve(self) -> None:
        """Answer what is asked, in order, until there is nobody to ask."""
        gc.disable()  # whoever starts waits for the imports
        while True:
            request, fds, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, MOST_DESCRIPTORS)
            if not request:
                return
            number = self._do(request, fds)
            for fd in fds:
                os.close(fd)
            if number is not None:
                self._control.send(answer(number))

    def _do(self, request: bytes, fds: list[int]) -> int | None:
        """What one request asks for; the number that answers it; None: the process that was forked has."""
        branch = read_branch(request)
        if branch is not None:
            importlib.import_module(KINDS[branch[0]].module)
            gc.freeze()
            self._fork_twice(lambda: self._branch(branch, *fds))
            return None
        if not self._has_imports:
            self._import()
        if request == PING:
            return 0
        if request == LAYOUT:
            return _in_child(lambda: tell_layout(*fds))
        expected = read_check(request)
        if expected is not None:
            return _in_child(lambda: _check(expected, *fds))
        self._fork_twice(lambda: self._live(fds))
        return None

    def _import(self) -> None:
        if self._kind:
            find(KINDS[self._kind].early_imports)(*self._modules)
            map_from_file, mappings = map_function(), read_mappings()
            if map_from_file is not None:
                put_away(self._before, mappings, map_from_file)
            let_go(mappings)
        else:
            import_aiohttp()
            for name in (*(kind.module for kind in reversed(KINDS.values()) if kind.prefork), *ALSO):
                importlib.import_module(name)
        gc.freeze()  # an actor's collector does not touch, and so not copy, what all share; little of it is garbage
        gc.enable()
        self._has_imports = True

    def _fork_twice(self, become: Callable[[], NoReturn]) -> None:
        """A process that becomes that. It answers by itself, as the supervisor's child, and only then lets go of the
        socket: so there is none of which that does not know, whoever of the three is killed.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        between = os.fork()
        if not between:
            try:
                if not os.fork():
                    self._answer_and_become(become, read_end, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        os.waitpid(between, 0)
        answered = os.read(read_end, 1)
        os.close(read_end)
        if not answered:  # perhaps it has been; the next answers would be taken for those of questions before theirs
            raise OSError("what was forked did not say that it has answered")

    def _answer_and_become(self, become: Callable[[], NoReturn], read_end: int, write_end: int) -> NoReturn:
        os.setsid()  # Ctrl-C is for the supervisor alone
        self._await_adoption()
        self._control.send(answer(os.getpid()))  # fails where nobody waits for it any more
        self._control.close()
        os.write(write_end, b".")  # with an end to be read here: the template may be gone
        os.close(write_end)
        os.close(read_end)
        become()

    def _await_adoption(self) -> None:
        deadline = time.monotonic() + ADOPTION_S
        while os.getppid() != self._supervisor and time.monotonic() < deadline:
            time.sleep(SPIN_S)  # nothing tells a process that it has a new parent

    def _live(self, fds: list[int]) -> NoReturn:
        """The actor's whole life."""
        boot, output, channel = read_fork_descriptors(fds)
        os.dup2(boot, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(boot)
        os.close(output)
        live(channel)

    def _branch(self, branch: Sequence[str], control: int, output: int) -> NoReturn:
        """Another template's whole life."""
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)

        def begin() -> None:
            die_with_supervisor(self._supervisor)
            _Template(self._supervisor, socket.socket(fileno=control), branch).serve()

        _live_and_end(begin)


def _check(expected: str, boot: int) -> int:
    os.dup2(boot, 0)
    return check(expected)


def _in_child(do: Callable[[], int]) -> int:
    """The exit status of a child that does so: what it imports is not for this process."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        die_with_supervisor(os.getppid())
        status = do()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
