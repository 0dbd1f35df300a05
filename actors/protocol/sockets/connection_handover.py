"""What supervisor and frontend say to each other on a frontend's channel: both ends of that wire.

A channel is a sequenced-packet socket, one for each life of a frontend; each message is one packet.
    to the frontend      HANDED: number and flags, with the connection as a descriptor (`hand_over`); or how many of the
                         connections whose numbers follow are to be closed, if they are idle, and CLOSE_IDLE
                         (`close_idle`). Written by supervisor/connections/pool.py, read by frontend/connections/pool.py
    from the frontend    GIVEN: pairs of a number and what became of it (`give_back`). Written by
                         frontend/connections/pool.py, read by supervisor/connections/pool.py
The kernel drops a descriptor for which the receiver has no room, and delivers the rest of the message: the frontend
then gives the number back as not taken. The supervisor has the connection still.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

HANDED = struct.Struct("<II")
GIVEN = struct.Struct("<II")

NEW, RESUMED = 0, 1  # flags: nobody has read anything of it; a predecessor or another frontend had it
RESERVED = 2  # it is for one question about the server itself: there is no room for more
CLOSE_IDLE = 4
PLAIN = 8  # it comes from a relay of this server, which has taken TLS off
NUMBER_BYTES = 4
MOST_ASKED = 2048  # numbers of one such message
HANDED_BYTES = HANDED.size + NUMBER_BYTES * MOST_ASKED  # of the longest message to a frontend

CLOSED = 0  # it is closed here; k + 1: it is frontend k's from now on
NOT_TAKEN = 1 << 31  # with its flags: no descriptor was left here for it
MOST_GIVEN = 512  # pairs of one message
GIVEN_BYTES = GIVEN.size * MOST_GIVEN  # of the longest message from a frontend

_AT_ONCE = struct.pack("ii", 1, 0)  # struct linger: on, for no time


class Handed(NamedTuple):
    """A connection, whose descriptor comes beside the message."""

    number: int
    flags: int


class CloseIdle(NamedTuple):
    """At most so many of these are to be closed, those that are idle."""

    most: int
    numbers: Sequence[int]


def hand_over(number: int, flags: int) -> bytes:
    """The message that goes with a connection."""
    return HANDED.pack(number, flags)


def close_idle(most: int, numbers: Sequence[int]) -> bytes:
    """The message that asks for room; of the numbers at most MOST_ASKED."""
    told = b"".join(number.to_bytes(NUMBER_BYTES, "little") for number in numbers[:MOST_ASKED])
    return HANDED.pack(most, CLOSE_IDLE) + told


def read_handed(message: bytes) -> Handed | CloseIdle:
    """What the supervisor says."""
    first, flags = HANDED.unpack_from(message)
    if flags & CLOSE_IDLE:
        return CloseIdle(first, memoryview(message)[HANDED.size :].cast("I"))
    return Handed(first, flags)


def give_back(pairs: Iterable[tuple[int, int]]) -> bytes:
    """What became of connections, at most MOST_GIVEN: `CLOSED`, `moved_to` or NOT_TAKEN | flags."""
    return b"".join(GIVEN.pack(*pair) for pair in pairs)


def read_given(message: bytes) -> Iterable[tuple[int, int]]:
    """What the frontend says, in its order."""
    return GIVEN.iter_unpack(message)


def moved_to(frontend: int) -> int:
    """What became of a connection that is this frontend's from now on."""
    return frontend + 1


def owner(where: int, frontends: int) -> int | None:
    """The frontend whose a connection is from now on; None if it is closed, or if there is no such frontend."""
    return where - 1 if CLOSED < where <= frontends else None


def reset_when_closed(connection: socket.socket) -> None:
    """What its client gets when it is closed is a reset, and not an end that looks like one in order."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
