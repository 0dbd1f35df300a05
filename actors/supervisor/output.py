"""The server's output: lines, each with the name of who says it. It knows no actor.

Nobody who reads slowly may hold the server up: actors write into pipes that the supervisor always empties, and when
its own output blocks, lines wait in a bounded queue. Those that find it full are dropped and counted, and the count is
said later.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Callable

LIMIT = 1 << 20  # bytes that wait for a reader
ATOMIC = 4096  # PIPE_BUF: a pipe that polls writable takes so much without blocking
READ = 1 << 16
LONGEST = 1 << 14  # bytes of one line; what is longer is broken
NAME_WIDTH = 13
OWN_NAME = "supervisor"


class Output:
    """Writes lines to a descriptor without ever blocking on it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        self.line(OWN_NAME, text.encode())

    def line(self, name: str, text: bytes) -> None:
        """Queue one line and write what can be written now."""
        line = b"%s | %s\n" % (name.ljust(NAME_WIDTH).encode(), text)
        if self._size + len(line) > LIMIT:
            self._dropped += 1
            return
        self._append(line)
        self._write()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the loop says when a blocked output can go on."""
        self._loop = loop

    def finish(self, timeout: float) -> None:
        """Give a reader that is there the chance to take what waits."""
        deadline = time.monotonic() + timeout
        self._unwatch()
        self._loop = None
        while self._waiting and (left := deadline - time.monotonic()) > 0:
            self._poll.poll(left * 1000)
            self._write()

    def _append(self, line: bytes) -> None:
        self._waiting.extend(line[at : at + ATOMIC] for at in range(0, len(line), ATOMIC))
        self._size += len(line)

    def _write(self) -> None:
        while self._waiting and self._writable():
            piece = self._waiting.popleft()
            try:
                written = os.write(self._fd, piece)
            except BlockingIOError:  # somebody made it non-blocking and filled it since the poll
                self._waiting.appendleft(piece)
                break
            except OSError:  # nobody reads any more, or the disk is full: the server goes on without these lines
                self._lose(piece)
                break
            self._size -= written
            if written < len(piece):
                self._waiting.appendleft(piece[written:])
            if self._dropped and self._size < LIMIT // 2:
                said = b"%d lines were dropped here: nobody read the output" % self._dropped
                self._dropped = 0
                self._append(b"%s | %s\n" % (OWN_NAME.ljust(NAME_WIDTH).encode(), said))
        if self._waiting and self._loop is not None:
            self._loop.add_writer(self._fd, self._write)
        else:
            self._unwatch()

    def _writable(self) -> bool:
        return bool(self._poll.poll(0))

    def _unwatch(self) -> None:
        if self._loop is not None:
            self._loop.remove_writer(self._fd)

    def _lose(self, piece: bytes) -> None:
        self._dropped += sum(lost.count(b"\n") for lost in (piece, *self._waiting))
        self._waiting.clear()
        self._size = 0


class Lines:
    """What one actor writes to its pipe, line by line, until all its writers are gone."""

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._take = take
        self._rest = b""
        self.open = True
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self.read)

    def read(self) -> int:
        """Take what is there, at most one read; returns how many bytes that were."""
        if not self.open:
            return 0
        try:
            data = os.read(self._fd, READ)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return 0
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._give(line)
        if len(self._rest) > LONGEST:
            self._give(self._rest)
            self._rest = b""
        return len(data)

    def close(self) -> None:
        """Take what is left and let go of the pipe."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._fd)
        if self._rest:
            self._give(self._rest)
        os.close(self._fd)

    def _give(self, line: bytes) -> None:
        for at in range(0, len(line) or 1, LONGEST):
            self._take(line[at : at + LONGEST])
