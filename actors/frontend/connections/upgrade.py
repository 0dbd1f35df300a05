"""Connections that are no HTTP any more: WebSockets, which a frontend's successor goes on with.

What such a connection is for is written down by its handler, whole, each time that it changes, before anything is told
of it (`keep`): one record of the frontend's keyed log, by the connection's number. Its words:
    head     the request that it began with, which a successor reads again; its answer was given
    state    the handler's own
    start    bytes of the client's, in the connection's count: from here on they may be wanted again
    end      behind the last message that the state knows of
    out      bytes that had been handed to the kernel then
    frames   what is told of the change, from there on
One store makes a record count. A death
    before it                       the message is heeded again, of which nobody was told
    between it and the last frame   the successor hands over what is missing of `frames`, by the kernel's count
    behind that                     what was told since (parts of a text) is in the answers' record, as of any stream
Of what the client sends, the request journal keeps all from `start` on (`pass_over`), and says from the first record on
that this is no request (`upgrade`). A record that the log has no room for, or has forgotten (16 MiB of newer ones were
written), leaves a connection that nobody can go on with: it is reset.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from actorserve.http.generation.idempotency_keys import KEY_BYTES
from actorserve.http.transport.resume import LeftSession
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*websocket[ \t]*\r\n", re.IGNORECASE)
CONTROL, LAST = 0x08, 0x80  # bits of a frame's first byte
LENGTHS = {126: 2, 127: 8}  # bytes of a length that does not fit into seven bits
MASK_BYTES = 4


class KeptUpgrade(msgspec.Struct, frozen=True, array_like=True, tag="upgrade"):
    """See above."""

    head: bytes
    state: bytes
    start: int
    end: int
    out: int
    frames: bytes


class KeyedRecords(Protocol):
    """What is found again by its key."""

    def put(self, key: bytes, payload: bytes) -> bool: ...

    def get(self, key: bytes) -> bytes | None: ...


class MessageEnds:
    """Where each message of a client ends, in the connection's count of bytes, and how much there is of one that does
    not yet.
    """

    def __init__(self, at: int, keeps: bool = True) -> None:
        """`keeps`: who takes messages asks where they end."""
        self._at = at  # behind what was looked at
        self._keeps = keeps
        self._unfinished = 0  # bytes of a message that has not come whole
        self._counts = False  # the frame that is begun is part of one
        self._tell: Callable[[int], None] = lambda size: None
        self._left = 0  # of the frame that is begun, behind its head
        self._ends = False  # that one is a message's last
        self._head = b""
        self._ready: deque[int] = deque()

    def feed(self, data: bytes) -> None:
        """More has come."""
        view = memoryview(data)
        while view:
            if self._left:
                taken = min(self._left, len(view))
                self._left -= taken
                self._unfinished += taken if self._counts else 0
            else:
                taken = self._read_head(view)
            self._at += taken
            view = view[taken:]
            if not self._left and not self._head and self._ends:
                if self._keeps:
                    self._ready.append(self._at)
                self._ends, self._unfinished = False, 0
                if view:
                    self._tell(0)  # what follows is another
        self._tell(self._unfinished)

    def watch(self, tell: Callable[[int], None]) -> None:
        """From now on this is told how many bytes have come of a message that is not whole."""
        self._tell = tell
        tell(self._unfinished)

    def _read_head(self, view: memoryview) -> int:
        """Bytes of a frame's head; it may not be there as a whole."""
        wanted = self._head_bytes(self._head + bytes(view[:2]))
        taken = min(wanted - len(self._head), len(view))
        self._head += view[:taken]
        if len(self._head) < wanted or wanted < self._head_bytes(self._head):
            return taken
        first, second = self._head[0], self._head[1]
        short = second & 0x7F
        size = LENGTHS.get(short, 0)
        self._left = int.from_bytes(self._head[2 : 2 + size], "big") if size else short
        self._counts = not first & CONTROL
        self._ends = bool(first & LAST) and self._counts
        self._head = b""
        return taken

    @staticmethod
    def _head_bytes(begun: bytes) -> int:
        if len(begun) < 2:
            return 2
        return 2 + LENGTHS.get(begun[1] & 0x7F, 0) + (MASK_BYTES if begun[1] & 0x80 else 0)

    def take(self) -> int:
        """Of the next message."""
        return self._ready.popleft()


class UpgradeLog:
    """Which connections of this frontend are upgraded, as its next life finds it."""

    def __init__(self, records: KeyedRecords | None = None) -> None:
        """None: nothing is written down."""
        self._records = records

    def put(self, number: int, kept: KeptUpgrade) -> bool:
        return self._records is not None and self._records.put(_key(number), msgspec.msgpack.encode(kept))

    def find(self, number: int) -> KeptUpgrade | None:
        data = self._records.get(_key(number)) if self._records is not None else None
        return msgspec.msgpack.decode(data, type=KeptUpgrade) if data else None

    def forget(self, number: int) -> None:
        """The number is another connection's."""
        if self._records is not None and self._records.get(_key(number)):
            self._records.put(_key(number), b"")


def _key(number: int) -> bytes:
    return hashlib.sha256(f"upgrade\0{number}".encode()).digest()[:KEY_BYTES]


class Upgrade:
    """Of one connection. Implements http.transport.resume.UpgradedRecord."""

    def __init__(
        self,
        log: UpgradeLog,
        journals: tuple[RequestJournal, ResponseJournal],
        number: int,
        head: bytes,
        at: int,
        left: LeftSession | None,
        read: Callable[[], int],
    ) -> None:
        """`at`: where its messages begin; `read`: how many bytes were read."""
        self.left = left
        self.ends = MessageEnds(at)
        self._log, self._number, self._head, self._read = log, number, head, read
        self._requests, self._answers = journals
        self._previous = self._end = at
        self.is_begun = left is not None

    def begin(self) -> int:
        self.is_begun = True
        return self._end

    def end_of_message(self) -> int:
        self._previous, self._end = self._end, self.ends.take()
        return self._end

    def start_of_message(self) -> int:
        return self._previous

    def keep(self, state: bytes, frames: bytes, start: int, end: int) -> None:
        out = self._answers.committed(self._number)
        if not self._log.put(self._number, KeptUpgrade(self._head, state, start, end, out, frames)):
            self._log.forget(self._number)
            self._answers.spoil(self._number)
            return
        self._requests.upgrade(self._number)
        self._requests.pass_over(self._number, start, self._read())


def what_is_left(kept: KeptUpgrade, committed: int) -> LeftSession:
    """For the handler that goes on. `committed`: bytes that were handed to the kernel."""
    return LeftSession(kept.state, kept.start, kept.end, kept.frames[max(0, committed - kept.out) :])
