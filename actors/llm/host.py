"""`python -m actorserve.actors.llm.host FD PID`: supervises all actors but the frontend, whose part process PID plays.

It ends when that process closes its end of the socket FD, or dies; no actor outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from setproctitle import setproctitle

from actorserve.shm.segment import SegmentError

from ..model.checks.model import find_model
from ..options.config import ConfigError
from ..protocol.topology import System
from ..supervisor.control.socket import Control
from ..supervisor.output import Output, make_output
from ..supervisor.shared_memory import Memory
from ..supervisor.supervisor import Supervisor
from ..supervisor.systemd.notify import Manager, find_manager
from ..telemetry.discovery import socket_name
from .host_wire import HostBegun, HostEnded, HostMessage, HostReady, decode_config, descriptors_of, receive, send

FAILED, REFUSED = 1, 2  # exit statuses, as those of `actorserve launch`
FINISH_S = 1.0  # what a reader of the output gets to take its last lines


class Host(Supervisor):
    """A supervisor whose frontend is no child of it."""

    def __init__(self, system: System, memory: Memory, output: Output, caller: socket.socket, caller_pid: int) -> None:
        control = Control(socket_name(os.getuid(), 0, os.getpid()))
        super().__init__(system, memory, [], output, control, Manager(), welcome=self._welcome)
        self.children = [one for one in self.children if not (one.traits.has_clients or one.traits.is_client)]
        self._began = time.monotonic()
        self._caller = caller
        self._caller_pid = caller_pid

    async def run(self) -> int:
        """Until the caller has closed its end or died, or the actors cannot go on."""
        loop = asyncio.get_running_loop()
        life = os.pidfd_open(self._caller_pid)  # its forks may hold the socket open
        loop.add_reader(life, self._caller_gone)
        loop.add_reader(self._caller, self._heard)
        if os.getppid() != self._caller_pid:  # it died before there was a descriptor to see it by
            self._caller_gone()
        try:
            return await super().run()
        finally:
            loop.remove_reader(life)
            os.close(life)

    def _heard(self) -> None:
        try:
            data, _ = receive(self._caller)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:  # nothing more is expected
            return
        asyncio.get_running_loop().remove_reader(self._caller)
        self.end(0, "the LLM object is closed")

    def _caller_gone(self) -> None:
        """Nobody waits for anything: everything ends at once."""
        self.forced = True
        asyncio.get_running_loop().remove_reader(self._caller)
        self.end(0, f"process {self._caller_pid} has ended")
        self.shutdown.kill_all()

    def _welcome(self) -> str:
        say(self._caller, HostReady())
        facts = self.memory.facts()
        return f"ready ({facts}, in {time.monotonic() - self._began:.1f} s)"

    def end(self, status: int, reason: str) -> None:
        if not self.ending.is_set():
            with contextlib.suppress(OSError):  # that the stream ends says so, too
                say(self._caller, HostEnded(status, reason))
        super().end(status, reason)


def say(caller: socket.socket, message: HostMessage, descriptors: Sequence[int] = ()) -> None:
    """Tell the caller, if it is still there."""
    with contextlib.suppress(ConnectionError, BlockingIOError):  # one who reads nothing any more waits for nothing
        send(caller, message, descriptors)


def main() -> int:
    """Supervise until the end; the exit status."""
    caller, pid = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    caller.set_inheritable(False)
    setproctitle("actorserve: supervisor")
    for number in (signal.SIGINT, signal.SIGTERM):  # until there is something to clean up, a signal ends this process
        signal.signal(number, signal.SIG_DFL)
    find_manager(os.environ)  # it is the caller's: nobody here speaks for that service
    given, _ = receive(caller)
    if not given:  # the LLM object went before it had said anything
        return 0
    config = decode_config(given)
    try:
        system = System(config, find_model(config))
        memory = Memory(system)
    except (ConfigError, SegmentError) as error:
        status = REFUSED if isinstance(error, ConfigError) else FAILED
        say(caller, HostEnded(status, str(error)))
        return status
    output = make_output(sys.stderr.fileno(), config)
    memory.describe("", 0)
    try:
        host = Host(system, memory, output, caller, pid)
        boot = memory.boot(system.by_name["frontend-0"])
        say(caller, HostBegun(boot), descriptors_of(boot))
        caller.setblocking(False)
        return asyncio.run(host.run())
    finally:
        memory.close()
        output.finish(FINISH_S)


if __name__ == "__main__":
    sys.exit(main())
