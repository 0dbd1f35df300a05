"""--uds: the server at a Unix socket, too, for proxies and containers that share a folder with it.

Clients of it are passed on to the TCP port by a process of its own (unix_relay.py), since a stream goes on with another
frontend by the kernel's counts of what was acknowledged, which there are of TCP alone. So the death of any actor is not
seen at the socket either; that of the relay resets its connections, and the next one listens at the same socket: the
supervisor holds it, so that who connects meanwhile waits in its queue. Its line of the board, behind the actors', is
written here: a beat for each byte that it writes to its standard output. One that writes none for --hang-timeout is
killed, as an actor is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

from actorserve.shm.board.board import ActorState, BoardWriter

from ...protocol.kinds import RELAY
from ..listeners import BACKLOG, ListenError
from ..liveness import LOOK_S
from ..processes.spawn import PYTHON, Process
from ..restart_policy import describe

if TYPE_CHECKING:
    from ..supervisor import Supervisor

COMMAND = (*PYTHON, "actorserve.actors.supervisor.connections.unix_relay")
LONGEST = 107  # bytes of a path that the kernel takes
START_S = 20.0  # what its imports may take
AGAIN_S = 0.2  # after the death of a relay that lived shorter
END_S = 2.0
MANY = 4096  # bytes that are read at once


def listen_unix(path: str, mode: int) -> socket.socket:
    """ListenError if somebody listens there, or if it is a file that is no socket. A socket of nobody is replaced."""
    if len(os.fsencode(path)) > LONGEST:
        raise ListenError(f"cannot listen on --uds {path}: a path of a socket has at most {LONGEST} bytes")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(path)
        os.chmod(path, mode)
        made.listen(BACKLOG)
    except (OSError, ListenError) as error:
        made.close()
        if isinstance(error, ListenError):
            raise
        raise ListenError(f"cannot listen on --uds {path}: {error.strerror}") from None
    return made


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"cannot listen on --uds {path}: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:  # nobody has it: whoever had is dead
            os.unlink(path)
            return
        except OSError as error:  # its queue is full, or it is another user's
            raise ListenError(f"cannot listen on --uds {path}: {error.strerror}") from None
    raise ListenError(f"cannot listen on --uds {path}: somebody listens there")


class UnixSocket:
    """The socket, and the relay that has it, begun again for as long as the server runs."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = path
        self._listener = listen_unix(path, mode)
        self._inode = os.stat(path).st_ino
        self._relay: subprocess.Popen[bytes] | None = None
        self._up = False  # this life of it has its clients
        self._beaten = False  # since the last look

    async def keep(self, address: tuple[str, int], supervisor: Supervisor) -> None:
        """Until it is cancelled: a relay to this address."""
        loop, say = asyncio.get_running_loop(), supervisor.output.say
        while True:
            began = loop.time()
            try:
                cause = await self._run(address, supervisor)
            except OSError as error:  # for want of descriptors or memory
                say(f"{RELAY} cannot be started: {error}", "error")
            else:
                again = "its connections are reset, and it is started again"
                say(f"{RELAY} ended (pid {self._pid}, {cause}); {again}", "error")
            if loop.time() - began < AGAIN_S:
                await asyncio.sleep(AGAIN_S)

    async def _run(self, address: tuple[str, int], supervisor: Supervisor) -> str:
        """One life of a relay; how it ended."""
        fd, ended, loop = self._listener.fileno(), asyncio.Event(), asyncio.get_running_loop()
        command = [*COMMAND, str(fd), address[0], str(address[1]), str(os.getpid())]
        pipe = subprocess.PIPE
        self._up = self._beaten = False
        self._relay = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[fd], start_new_session=True)
        assert self._relay.stdout is not None
        beats, process = self._relay.stdout.fileno(), Process(self._pid, self._relay)
        supervisor.beside.add(self._pid)
        status = supervisor.memory.show_beside(supervisor.system.beside[-1], self._pid)
        loop.add_reader(process.pidfd, ended.set)
        loop.add_reader(beats, self._beat, beats, status, supervisor)
        watching = loop.create_task(self._watch(supervisor.system.config.hang_timeout))
        try:
            await ended.wait()
            loop.remove_reader(process.pidfd)  # which is closed by waiting
            returncode = process.wait()
            return f"killed, since {watching.result()}" if watching.done() else describe(returncode)
        finally:
            watching.cancel()
            loop.remove_reader(beats)
            self._relay.stdout.close()
            supervisor.beside.discard(self._pid)

    @property
    def _pid(self) -> int:
        assert self._relay is not None
        return self._relay.pid

    def _beat(self, beats: int, status: BoardWriter, supervisor: Supervisor) -> None:
        if not os.read(beats, MANY):  # it has ended, which its life tells
            asyncio.get_running_loop().remove_reader(beats)
            return
        if not self._up:
            self._up = True
            status.set_state(ActorState.READY)
            supervisor.output.say(f"{RELAY} is up (pid {self._pid}, at {self._path})")
        status.beat()
        self._beaten = True

    async def _watch(self, limit_s: float) -> str:
        """Kill it once it has not beaten for so long; why. Each look counts for no more than LOOK_S, however late."""
        silent_s = 0.0
        while silent_s <= (limit_s if self._up else max(limit_s, START_S)):
            await asyncio.sleep(LOOK_S)
            silent_s = 0.0 if self._beaten else silent_s + LOOK_S
            self._beaten = False
        assert self._relay is not None
        self._relay.kill()
        return f"its loop has not turned for {silent_s:.1f} s"

    def close(self) -> None:
        """The actors have ended; what they have said last is passed on. The file is removed, if it is still its own."""
        self._listener.close()
        if (relay := self._relay) is not None:
            assert relay.stdin is not None
            relay.stdin.close()
            try:
                relay.wait(END_S)
            except subprocess.TimeoutExpired:
                relay.kill()
                relay.wait()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
