"""The file of `--record`: what it holds, how it is appended to, and how it is read.

    file      MAGIC, then frames
    frame     length of the content, its CRC-32, number of records (uint32 each, little endian), then the content:
              so many records in msgpack
A RecordedLife begins a section, the life of one scheduler; what came and was planned in each turn follows. A death
may cut the last frame: a successor cuts it off before it appends, a reader stops there. Prompts and answers are in the
file, so that only its owner may read it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...model.info import ModelInfo
from ...options.config import Config
from ...protocol.messages import ToScheduler
from ...protocol.wire import ITEM_BYTES, unpack

if TYPE_CHECKING:
    from ...protocol.wire import Int32s

MAGIC = b"ACTREC01"
FRAME = struct.Struct("<III")
CHUNK = 64 << 10  # so much is written at once ...
LATEST_S = 1.0  # ... or what there is after so long


class RecordedSequence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sequence as its frontend and its renderer left it in the request table, and how far predecessors had come."""

    ref: int
    arrival_ns: int
    params: bytes
    packed_tokens: bytes  # of the prompt, then what was generated before
    prompt_tokens: int
    limit: int
    hashes: bytes

    @property
    def packed_prompt(self) -> bytes:
        """int32 [prompt_tokens], as the request table takes it."""
        return self.packed_tokens[: ITEM_BYTES * self.prompt_tokens]

    @property
    def generated(self) -> Int32s:
        """int32 [n]: what follows the prompt."""
        return unpack(self.packed_tokens)[self.prompt_tokens :]


class RecordedFlag(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A word of the table that was found set: cancelled, or (stop > 0) stopped."""

    ref: int
    stop: int = 0


class RecordedSlot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The latest use of a slot when the scheduler started."""

    ref: int
    arrival_ns: int
    finish: int


class RecordedPlan(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A step that was planned; `digest` is of the whole message to the worker."""

    step: int
    digest: bytes
    packed_rows: bytes  # as the Step has them
    packed_counts: bytes

    @property
    def rows(self) -> Int32s:
        """int32 [n]."""
        return unpack(self.packed_rows)

    @property
    def counts(self) -> Int32s:
        """int32 [n]."""
        return unpack(self.packed_counts)


Found = list[tuple[int, RecordedSequence]]
Flags = list[tuple[int, RecordedFlag]]


class RecordedLife(msgspec.Struct, array_like=True, frozen=True, tag="head"):
    """A scheduler starts: its options, and what it finds."""

    at_ns: int  # CLOCK_MONOTONIC, as everywhere here
    wall_ns: int
    version: str
    config: Config  # without keys
    model: ModelInfo
    incarnation: int
    in_flight: tuple[int, int]  # what its predecessor worked on, and how often it was tried
    ended: int  # how that one ended
    kv_map: bytes  # zlib of the whole map; nothing where there was no predecessor
    uses: list[RecordedSlot]  # in the order in which it looked
    facts: Found = []
    flags: Flags = []
    died: str = ""


class RecordedTurn(msgspec.Struct, array_like=True, frozen=True, tag="turn"):
    """What came at once and what was planned then."""

    at_ns: int
    idle: int  # turns before it in which nothing came and nothing was planned
    messages: list[ToScheduler]
    plans: list[RecordedPlan]
    facts: Found = []  # each with the number of the message at which it was read
    flags: Flags = []
    died: str = ""  # of this error
    held: bool = False  # behind its plans it did not ask for another one
    ends: bool = False  # those that waited for steps were told, which nobody was left to compute


Record = RecordedLife | RecordedTurn


class RecordFile:
    """The writing end. What goes wrong with the file ends the recording with a line in the log, and nothing else."""

    def __init__(self, path: str, most: int, log: Logger, first: bool) -> None:
        """The `first` life of a server moves an older recording to FILE.1, others append. OSError, ValueError: no."""
        self._log = log
        self._path, self._most = path, most
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer, self._records = bytearray(), 0
        self._written_at = time.monotonic()
        self._fd = -1
        fd = _open(path, first)
        try:
            self._size = _prepare(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    @property
    def open(self) -> bool:
        """False once the recording has ended."""
        return self._fd >= 0

    def add(self, record: Record) -> None:
        """Keep it; write what was kept if that is much or old."""
        if self._fd < 0:
            return
        self._buffer += self._encoder.encode(record)
        self._records += 1
        if len(self._buffer) >= CHUNK:
            self.write()

    def write_old(self) -> None:
        """Write what was kept for long."""
        if self._records and time.monotonic() - self._written_at > LATEST_S:
            self.write()

    def write(self) -> None:
        """Write what was kept, as one frame, or nothing of it."""
        if self._fd < 0 or not self._records:
            return
        frame = FRAME.pack(len(self._buffer), zlib.crc32(self._buffer), self._records) + self._buffer
        self._buffer.clear()
        self._records = 0
        self._written_at = time.monotonic()
        if self._size + len(frame) > self._most:
            self._stop(f"it has {self._size:,} bytes, and --record-max-bytes allows {self._most:,}")
            return
        try:
            done = os.write(self._fd, frame)
            if done < len(frame):
                os.ftruncate(self._fd, self._size)
                self._stop(f"{done} of {len(frame)} bytes could be written")
            self._size += done
        except OSError as error:
            self._stop(str(error.strerror))

    def _stop(self, reason: str) -> None:
        self._log.error("--record: %s is not written any more: %s", self._path, reason)
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def close(self) -> None:
        """Write the rest and let go of the file."""
        self.write()
        if self._fd >= 0:
            self._close()


def _open(path: str, first: bool) -> int:
    """The file, locked: of two servers that were given the same one, the second is refused."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not first or not Path(path).is_file() or not os.fstat(fd).st_size:
            return fd
        if os.pread(fd, len(MAGIC), 0) != MAGIC:
            raise ValueError("it is there, and is no recording")
        os.replace(path, f"{path}.1")
    except BlockingIOError:
        os.close(fd)
        raise ValueError("it is another server's") from None
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return _open(path, first)


def _prepare(fd: int) -> int:
    """Begin the file, or cut a frame off that a death has left unfinished. Returns its length."""
    size = os.fstat(fd).st_size
    if size < len(MAGIC):
        os.write(fd, MAGIC[size:])
        return len(MAGIC)
    if os.pread(fd, len(MAGIC), 0) != MAGIC:
        raise ValueError("it is there, and is no recording")
    end = len(MAGIC)
    while end + FRAME.size <= size:
        length = FRAME.unpack(os.pread(fd, FRAME.size, end))[0]
        if end + FRAME.size + length > size:
            break
        end += FRAME.size + length
    if end < size:
        os.ftruncate(fd, end)
    return end


class Reading:
    """The records of a file in order; afterwards `cut` says whether its end is missing or damaged."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.cut = False

    def __iter__(self) -> Iterator[Record]:
        """ValueError: this is no recording of this version."""
        decode = msgspec.msgpack.Decoder(list[Record]).decode
        with open(self._path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError(f"{self._path} is no recording")
            while head := file.read(FRAME.size):
                length, check, count = FRAME.unpack(head) if len(head) == FRAME.size else (0, 0, 0)
                content = file.read(length)
                if not count or len(content) < length or zlib.crc32(content) != check:
                    self.cut = True
                    return
                try:
                    records = decode(b"\xdd" + count.to_bytes(4, "big") + content)
                except msgspec.ValidationError as error:
                    raise ValueError(f"{self._path} is of another version of actorserve: {error}") from None
                yield from records
