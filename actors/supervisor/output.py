"""The server's output: lines, each with the name of who says it. It knows no actor.

As text the time and the name stand before the line. As JSON each line is one object: actors write theirs whole
(telemetry/log_format.py), and what comes in another form, be it half a line of an actor that was killed, is made one.

Nobody who reads slowly may hold the server up: actors write into pipes that the supervisor always empties, and when
its own output blocks, lines wait in a bounded queue. Those that find it full are dropped and counted, and the count is
said later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping

from ..options.config import Config
from ..protocol.kinds import SUPERVISOR
from ..telemetry.log_format import TEXT, UNSPOKEN, JsonFormatter, json_line, local_time, message_of, say_exceptions

LIMIT = 1 << 20  # bytes that wait for a reader
ATOMIC = 4096  # PIPE_BUF: a pipe that polls writable takes so much without blocking
READ = 1 << 16
LONGEST = 1 << 14  # bytes of one line; what is longer is broken
NAME_WIDTH = 13


class Output:
    """Writes lines to a descriptor without ever blocking on it."""

    def __init__(self, fd: int, as_json: bool = False, with_time: bool = False) -> None:
        """`with_time`: it stands before lines of text; objects always have one."""
        self._fd = fd
        self.as_json = as_json
        self._with_time = with_time
        self._cut = False  # the last byte that was written ends no line
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def say(self, text: str, level: str = "info") -> None:
        """A line of the supervisor's own."""
        if self.as_json:
            self._put(json_line(level, SUPERVISOR, os.getpid(), text) + b"\n")
        else:
            for line in text.splitlines():
                self._put(self._text_line(SUPERVISOR, line.encode(errors="replace")))

    def line(self, name: str, text: bytes, pid: int = 0) -> bytes:
        """A line that this actor wrote; returns what it says, without its form."""
        if not self.as_json:
            self._put(self._text_line(name, text))
            return text
        message = message_of(text)
        if message is None:
            message = text.decode(errors="replace").rstrip("\r")
            text = json_line(UNSPOKEN, name, pid, message)
        self._put(text + b"\n")
        return message.encode(errors="replace")

    def _text_line(self, name: str, text: bytes) -> bytes:
        when = f"{local_time(time.time())} " if self._with_time else ""
        return b"%s%s | %s\n" % (when.encode(), name.ljust(NAME_WIDTH).encode(), text)

    def _put(self, line: bytes) -> None:
        """Queue one line and write what can be written now."""
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
        if self._cut and not self._waiting:  # the rest of a line was lost: the next one is none of it
            self._waiting.append(b"\n")
            self._size += 1
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
            self._cut = not piece[:written].endswith(b"\n")
            if written < len(piece):
                self._waiting.appendleft(piece[written:])
            if self._dropped and self._size < LIMIT // 2:
                lost, self._dropped = self._dropped, 0
                self.say(f"{lost} lines were dropped here: nobody read the output", "warning")
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


class OutputHandler(logging.Handler):
    """What the supervisor's own modules log."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(JsonFormatter(SUPERVISOR) if output.as_json else logging.Formatter(TEXT))

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._output.line(SUPERVISOR, line.encode(errors="replace"), os.getpid())


def make_output(fd: int, config: Config) -> Output:
    """The supervisor's; what this process logs goes there, too, and in JSON so do its tracebacks."""
    output = Output(fd, config.log_format == "json", with_time=not is_journal(fd, os.environ))
    root = logging.getLogger()
    root.addHandler(OutputHandler(output))
    root.setLevel(config.log_level.upper())
    if output.as_json:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # they are no lines
        say_exceptions(SUPERVISOR)
    return output


def is_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether this leads to systemd's journal, which has a time of its own for each line (systemd.exec(5))."""
    file = os.fstat(fd)
    return environ.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"


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
