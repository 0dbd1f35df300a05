"""`actorserve launch --headless`: the workers of this machine, for a server on another one.

For each of them: connect to its proxy on node 0, show that the secret is known, give the connection to a process that
has done its imports, and wait until that process or the connection has ended; then end the other, and begin again. The
KV memory is a file of this process, so that the next life of a worker finds it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from actorserve.shm.segment import SegmentError

from ...model.checks.model import find_model
from ...options.config import Config, ConfigError
from ...protocol.actor_spec import ActorSpec
from ...protocol.sockets.node_wire import (
    NONCE_BYTES,
    PROXY,
    WORKER,
    Greeting,
    Unproven,
    Welcome,
    facts_of,
    is_proven,
    prepare,
    proof_of,
    proxy_port,
    read_bytes,
    read_secret,
    receive,
    send,
)
from ...protocol.topology import System
from ...runtime.process import Boot
from ..output import Output
from ..processes.spawn import PYTHON
from ..shared_memory import NEEDS_LESS, Memory

STANDBY_COMMAND = (*PYTHON, "actorserve.actors.worker.pipeline.nodes.standby")
AGAIN_S = 0.5  # between two tries to connect
PROVE_S = 10.0
FAILED = 1


class RefusedByServer(RuntimeError):
    """Node 0 says why; it would say so again."""


class Headless:
    """All workers of this machine."""

    def __init__(self, config: Config, output: Output) -> None:
        self.config, self.output = config, output
        self.system = System(config, find_model(config))
        self.secret = read_secret(config)
        self.memory = Memory(self.system)
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self.status = 0
        own = [worker for worker in self.system.of_kind("worker") if config.node_of(worker.index) == config.node_rank]
        self._keepers = [Keeper(self, worker) for worker in own]

    def run(self) -> int:
        """Until it is told to stop, or cannot be."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.ended.set())
        threads = [threading.Thread(target=keeper.run, name=keeper.worker.name) for keeper in self._keepers]
        for thread in threads:
            thread.start()
        self.ended.wait()
        for thread in threads:
            thread.join()
        self.memory.close()
        return self.status

    def say(self, text: str, level: str = "info") -> None:
        """A line of the output, whichever thread has one."""
        with self._lock:
            self.output.say(text, level)

    def end(self, status: int, reason: str) -> None:
        """This machine cannot take part."""
        self.say(reason, "error")
        self.status = status
        self.ended.set()


class Standby:
    """A process that will be a worker (worker/pipeline/nodes/standby.py)."""

    def __init__(self, kept: list[int], pass_on: Callable[[IO[bytes]], None]) -> None:
        """`kept`: the descriptors that it has under the same numbers; `pass_on` reads what it says."""
        self._control, theirs = socket.socketpair()
        with theirs:
            command, fds = [*STANDBY_COMMAND, str(theirs.fileno())], [*kept, theirs.fileno()]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            # Ctrl-C is for the supervisor alone, which ends it
            self.process = subprocess.Popen(command, pass_fds=fds, start_new_session=True, **pipes)
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=pass_on, args=(self.process.stdout,))
        try:
            self._reader.start()
        except RuntimeError:  # no more threads
            self.process.kill()
            self.process.wait()
            self._control.close()
            raise

    def become(self, boot: Boot, connection: socket.socket) -> None:
        """It is this worker from now on. ConnectionError if it is dead."""
        assert self.process.stdin is not None
        with self._control, self.process.stdin as told:
            socket.send_fds(self._control, [b"c"], [connection.fileno()])
            told.write(msgspec.msgpack.encode(boot))

    def end(self) -> int:
        """Kill it; its exit status."""
        self._control.close()
        if self.process.poll() is None:
            self.process.kill()
        status = self.process.wait()
        self._reader.join()
        return status


class Keeper:
    """One worker, life after life."""

    def __init__(self, headless: Headless, worker: ActorSpec) -> None:
        self._headless, self.worker = headless, worker
        self._config, self._memory = headless.config, headless.memory
        assert self._config.master_addr is not None
        self._address = self._config.master_addr, proxy_port(self._config, worker.index)
        self._standby: Standby | None = None  # the next life
        self._facts = facts_of(self._config, headless.system.model, headless.system.table_sizes)

    def run(self) -> None:
        """Until the machine is to stop, which it is where this ends otherwise."""
        try:
            self._prepare()
            self._run()
        except Exception as error:
            self._headless.end(FAILED, f"{self.worker.name} cannot be kept any more: {error!r}")
            raise
        finally:
            if self._standby is not None:
                self._standby.end()

    def _run(self) -> None:
        said = False
        while not self._headless.ended.is_set():
            try:
                connection, life = self._join()
            except RefusedByServer as error:
                self._headless.end(2, f"{self.worker.name}: node 0 refuses it: {error}")
                return
            except (OSError, EOFError, Unproven) as error:
                if not said:
                    host, port = self._address
                    self._headless.say(f"{self.worker.name} waits for node 0 at {host}:{port} ({error})")
                said = True
                self._headless.ended.wait(AGAIN_S)
                continue
            said = False
            with connection:
                try:
                    self._live(connection, life)
                except (OSError, RuntimeError) as error:  # it has died meanwhile, or there is no room for one more
                    self._headless.say(f"{self.worker.name} cannot be started: {error}", "error")
                    self._headless.ended.wait(AGAIN_S)

    def _join(self) -> tuple[socket.socket, int]:
        """(the connection to the proxy, which life of the group it is)."""
        connection = prepare(socket.create_connection(self._address, timeout=PROVE_S))
        try:
            theirs, own = read_bytes(connection, NONCE_BYTES), os.urandom(NONCE_BYTES)
            send(connection, Greeting(proof_of(self._headless.secret, theirs, WORKER), own, self._facts))
            welcome = receive(connection, Welcome)
            if welcome.refused:
                raise RefusedByServer(welcome.refused)
            if not is_proven(welcome.proof, self._headless.secret, own, PROXY):
                raise RefusedByServer("it does not know the secret of --node-secret-file")
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection, welcome.life

    def _live(self, connection: socket.socket, life: int) -> None:
        """One life of the worker."""
        for worker in self._headless.system.of_kind("worker"):  # all of a group count alike
            self._memory.board.set_incarnation(worker.position, life)
        standby, self._standby = self._standby or self._start(), None
        began = time.monotonic()
        try:
            standby.become(self._memory.boot(self.worker, connection.fileno()), connection)
            self._prepare()
            self._watch(standby.process, connection)
        finally:
            status = standby.end()
            self._headless.say(f"{self.worker.name} ended (status {status}, up {time.monotonic() - began:.1f} s)")

    def _prepare(self) -> None:
        """The next life, if there is room for its process by now."""
        try:
            self._standby = self._start()
        except (OSError, RuntimeError) as error:
            self._headless.say(f"{self.worker.name}: its next life is started when it is wanted: {error}", "warning")

    def _start(self) -> Standby:
        return Standby(self._memory.inherited, self._pass_on)

    def _pass_on(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self._headless.say(f"{self.worker.name} | {line.decode(errors='replace').rstrip()}")

    def _watch(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        """Until the process or its connection ends, or this machine is to stop."""
        pidfd = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(connection, select.POLLRDHUP)
            while not self._headless.ended.is_set() and not poll.poll(AGAIN_S * 1e3):
                pass
        finally:
            os.close(pidfd)


def launch_headless(config: Config, output: Output) -> int:
    """The exit status."""
    try:
        headless = Headless(config, output)
    except ConfigError as error:
        output.say(str(error), "critical")
        return error.status
    except SegmentError as error:
        output.say(f"{error}; {NEEDS_LESS}", "critical")
        return FAILED
    return headless.run()
