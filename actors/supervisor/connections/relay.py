"""A process that brings clients to the frontends, begun again for as long as the server runs: that of --uds
(unix_socket.py) and that of --http2-port (http2/door.py).

It is no actor: it has no mailbox, knows no request and maps no memory. Its line of the board, behind the actors', is
written here: a beat for each that it writes to its standard output, with its gauges where its kind has some. One that
writes none for --hang-timeout is killed, as an actor is. Whose sockets it serves the supervisor holds, so that who
connects while there is none waits in their queue for the next one.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actorserve.shm.board.board import ActorState, BoardWriter

from ...protocol.kinds import kind_of
from ...protocol.sockets.relay_wire import read_beats
from ..liveness import LOOK_S
from ..processes.spawn import PYTHON, Process
from ..restart_policy import describe

if TYPE_CHECKING:
    from ..supervisor import Supervisor

START_S = 20.0  # what its imports may take
AGAIN_S = 0.2  # after the death of a relay that lived shorter
END_S = 2.0


class Relay:
    """One of them: what all have. `name` is its kind's, too."""

    name: str
    place: str  # where clients come to, as people are told

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._up = False  # this life of it has its clients
        self._beaten = False  # since the last look
        self._counted: list[int] = []  # its gauges as it told them last, in this life

    def begin(self, address: tuple[str, int], supervisor: Supervisor) -> tuple[Sequence[str], list[int]]:
        """For a new life: what stands behind the module in its command, and the descriptors that it is given."""
        raise NotImplementedError

    def begun(self) -> None:
        """It has its process, and in it what it was given."""

    def ended(self, supervisor: Supervisor) -> None:
        """That life is over, or could not be begun."""

    async def keep(self, address: tuple[str, int], supervisor: Supervisor) -> None:
        """Until it is cancelled: a relay to this address."""
        loop, say = asyncio.get_running_loop(), supervisor.output.say
        while True:
            began = loop.time()
            try:
                cause = await self._run(address, supervisor)
            except OSError as error:  # for want of descriptors or memory
                say(f"{self.name} cannot be started: {error}", "error")
            else:
                again = "its connections are reset, and it is started again"
                say(f"{self.name} ended (pid {self._pid}, {cause}); {again}", "error")
            if loop.time() - began < AGAIN_S:
                await asyncio.sleep(AGAIN_S)

    async def _run(self, address: tuple[str, int], supervisor: Supervisor) -> str:
        """One life of a relay; how it ended."""
        try:
            arguments, fds = self.begin(address, supervisor)
            return await self._live([*PYTHON, kind_of(self.name).module, *arguments], fds, supervisor)
        finally:
            self.ended(supervisor)

    async def _live(self, command: Sequence[str], fds: list[int], supervisor: Supervisor) -> str:
        ended, loop, pipe = asyncio.Event(), asyncio.get_running_loop(), subprocess.PIPE
        self._up = self._beaten = False
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=fds, start_new_session=True)
        self.begun()
        assert self._process.stdout is not None
        beats, process = self._process.stdout.fileno(), Process(self._pid, self._process)
        supervisor.beside.add(self._pid)
        status = supervisor.memory.show_beside(supervisor.system.relays[self.name], self._pid)
        self._counted = [0] * len(kind_of(self.name).gauges)
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
            self._process.stdout.close()
            supervisor.beside.discard(self._pid)

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _beat(self, beats: int, status: BoardWriter, supervisor: Supervisor) -> None:
        told = read_beats(beats, len(self._counted))
        if told is None:  # it has ended, which its life tells
            asyncio.get_running_loop().remove_reader(beats)
            return
        if not self._up:
            self._up = True
            status.set_state(ActorState.READY)
            supervisor.output.say(f"{self.name} is up (pid {self._pid}, at {self.place})")
        for gauge, (before, now) in enumerate(zip(self._counted, told, strict=True)):
            status.add(gauge, now - before)  # what counts goes on from the life before
        self._counted = list(told)
        status.beat()
        self._beaten = True

    async def _watch(self, limit_s: float) -> str:
        """Kill it once it has not beaten for so long; why. Each look counts for no more than LOOK_S, however late."""
        silent_s = 0.0
        while silent_s <= (limit_s if self._up else max(limit_s, START_S)):
            await asyncio.sleep(LOOK_S)
            silent_s = 0.0 if self._beaten else silent_s + LOOK_S
            self._beaten = False
        assert self._process is not None
        self._process.kill()
        return f"its loop has not turned for {silent_s:.1f} s"

    def close(self) -> None:
        """The actors have ended; what they have said last is passed on."""
        if (process := self._process) is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
