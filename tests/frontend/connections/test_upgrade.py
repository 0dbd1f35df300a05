"""Where a WebSocket's messages end, however their bytes come; and what is found of one by its connection's number."""

from __future__ import annotations

import random
import struct

import pytest

from actorserve.actors.frontend.connections.upgrade import KeptUpgrade, MessageEnds, UpgradeLog, what_is_left

FIN, TEXT, GO_ON, PING = 0x80, 1, 0, 9


def masked(first: int, payload: bytes) -> bytes:
    """A frame of a client."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + b"mask" + payload


def test_messages_end_where_their_last_frame_does() -> None:
    draw = random.Random(7)
    data, ends = b"", []
    for size in (0, 1, 125, 126, 127, 65_535, 65_536, 70_000, 5):
        parts = draw.randrange(1, 4)
        for part in range(parts):
            last = part == parts - 1
            data += masked((FIN if last else 0) | (GO_ON if part else TEXT), bytes(size))
            if last:
                ends.append(1000 + len(data))
            data += masked(FIN | PING, b"?")  # also between two frames of one message
    for longest in (1, 3, 100, len(data)):
        found, at = MessageEnds(1000), 0
        while at < len(data):
            size = draw.randrange(1, longest + 1)
            found.feed(data[at : at + size])
            at += size
        assert [found.take() for _ in ends] == ends


def test_how_much_there_is_of_a_message_that_is_not_whole() -> None:
    """Pings are none of it, and nobody need ask where messages end."""
    told: list[int] = []
    found = MessageEnds(0, keeps=False)
    found.watch(told.append)
    whole = masked(TEXT, bytes(1000)) + masked(FIN | PING, b"?" * 100) + masked(FIN | GO_ON, bytes(500))
    for part in (whole[:508], whole[508:1108], whole[1108:1500], whole[1500:], masked(FIN | PING, b"?" * 100), b"\x81"):
        found.feed(part)
    at = len(masked(TEXT, b"")) + 2
    assert told == [0, 508 - at, 1000, told[3], 0, 0, 0] and 1000 < told[3] < 1500
    with pytest.raises(IndexError):
        found.take()


def test_what_follows_a_message_is_another() -> None:
    """Also where its beginning comes with the end of the first: each has its own time."""
    told: list[int] = []
    found, long = MessageEnds(0), masked(FIN | TEXT, bytes(1000))
    found.watch(told.append)
    found.feed(long[:500])
    found.feed(long[500:] + long[:500])
    begun = 500 - len(masked(TEXT, b"")) - 2
    assert told == [0, begun, 0, begun]


class Records(dict[bytes, bytes]):
    def put(self, key: bytes, payload: bytes) -> bool:
        self[key] = payload
        return len(payload) < 1000


def test_what_is_written_down_is_found_until_the_number_is_anothers() -> None:
    log = UpgradeLog(Records())
    kept = KeptUpgrade(b"GET /", b"state", 10, 20, 100, b"0123456789")
    assert log.put(3, kept) and log.find(3) == kept and log.find(4) is None
    log.forget(3)
    log.forget(4)
    assert log.find(3) is None
    assert not log.put(3, KeptUpgrade(b"", bytes(2000), 0, 0, 0, b""))


def test_of_what_is_told_a_successor_says_what_is_missing() -> None:
    kept = KeptUpgrade(b"GET /", b"state", 10, 20, 100, b"0123456789")
    for committed, frames in ((100, b"0123456789"), (104, b"456789"), (110, b""), (150, b"")):
        left = what_is_left(kept, committed)
        assert (left.state, left.start, left.end, left.frames) == (b"state", 10, 20, frames)
