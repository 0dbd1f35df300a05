"""The keeper (--keep-kv): it has the KV memory of GPU workers, so that this is there when a worker has died.

It creates the memory (driver.py), and gives descriptors of it to workers (protocol/sockets/keeper_wire.py), which map
it and compute in it. It has no CUDA context, and neither reads nor writes that memory. Whether what lies there is what
the KV map says is told as on a CPU, by the header of the worker's file (worker/kept_memory/file.py), which the worker
alone writes; a life goes on with what it finds if header and keeper name the same digest and the same first life.
    a worker dies          its memory stays; the next life asks for it, maps it, and says since which life it is that
    it dies while it asks  before Make its header says that it has begun nothing; behind it likewise, until all is
                           zeros; so what was made is dropped by the next life
    the keeper dies        a worker that runs has its memory mapped, and keeps it; the keeper's successor has nothing,
                           so that the next life begins anew
    the supervisor dies    the kernel ends the keeper, and the memory is free
A thread answers, one question after the other, so that a driver that hangs stops nobody but who asks, for a bounded
time. What steps of a dead worker had half written is in no position that the KV map calls computed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass

import msgspec

from ..protocol.sockets.keeper_wire import KEEPER, Asked, Drop, Find, Kept, Make, Weigh, answer, receive
from ..runtime.process import Actor, Context, run
from .driver import Driver, DriverError

AGAIN_S = 0.5  # behind an error of accept


@dataclass(frozen=True)
class WorkerMemory:
    """One worker's memory."""

    handle: int
    fd: int
    size: int
    digest: bytes
    since: int


class Memories:
    """All that is kept, by worker."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._held: dict[str, WorkerMemory] = {}

    def answer(self, question: Asked) -> tuple[Kept, int | None]:
        """What there is now, and a descriptor of it."""
        match question:
            case Find():
                held = self._held.get(question.worker)
                if held is None or held.digest != question.digest:
                    return Kept(), None
                return Kept(held.size, held.since), held.fd
            case Make():
                self._drop(question.worker)
                made = self._held[question.worker] = self._make(question)
                return Kept(made.size, made.since), made.fd
            case Drop():
                self._drop(question.worker)
                return Kept(), None
            case Weigh():
                held = self._held.get(question.worker)
                return Kept(0 if held is None else held.size), None

    def _make(self, wish: Make) -> WorkerMemory:
        least = self._driver.granularity(wish.device)
        size = -(-wish.size // least) * least
        handle = self._driver.create(wish.device, size)
        try:
            fd = self._driver.export(handle)
        except DriverError:
            self._driver.release(handle)
            raise
        return WorkerMemory(handle, fd, size, wish.digest, wish.life)

    def _drop(self, worker: str) -> None:
        held = self._held.pop(worker, None)
        if held is not None:
            os.close(held.fd)
            self._driver.release(held.handle)

    @property
    def bytes(self) -> int:
        """Of all."""
        return sum(held.size for held in self._held.values())


class KeeperActor(Actor):
    """The one of a server. It has no messages: its thread does what there is to do."""

    def __init__(self, context: Context) -> None:
        self._log = context.log
        self._listener = socket.socket(fileno=os.dup(context.files[KEEPER]))
        self._memories: Memories | None = None
        self._why = ""
        try:
            self._memories = Memories(Driver())
        except DriverError as error:
            self._why = str(error)
            self._log.error("--keep-kv: no KV memory is kept: %s", error)
        threading.Thread(target=self._answer_on, daemon=True).start()

    def _answer_on(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
                with line:
                    self._answer(line)
            except OSError as error:  # who asked is gone, or there are too many open files
                self._log.warning("a worker was not told of its KV memory: %s", error)
                time.sleep(AGAIN_S)  # not a signal: whose files they are tells nobody

    def _answer(self, line: socket.socket) -> None:
        try:
            question = receive(line)
        except msgspec.MsgspecError:
            question = None
        if question is None:
            return
        if self._memories is None:
            answer(line, Kept(problem=self._why), None)
            return
        try:
            kept, fd = self._memories.answer(question)
        except DriverError as error:
            self._log.error("no KV memory for %s: %s", question.worker, error)
            answer(line, Kept(problem=str(error)), None)
            return
        answer(line, kept, fd)
        if isinstance(question, Make):
            self._log.info("%d bytes are kept, of them %d for %s", self._memories.bytes, kept.size, question.worker)


def main(context: Context) -> None:
    """Run the keeper until it is told to stop."""
    run(KeeperActor(context), context)
