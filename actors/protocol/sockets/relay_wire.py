"""What the supervisor and its relays, or its clients among the actors, say to each other: both ends of these wires.

beat         by the relay's standard output: its gauges as 64-bit numbers, or one byte if it has none. Written by
             supervisor/connections/relay_process.py, read by supervisor/connections/relay.py
ask, answer  by a sequenced-packet socket, one for each life of the relay of HTTP/2 and of the batcher: the address of a
             client for whom it wants a connection to a frontend, and that connection as a descriptor, or none if it
             cannot be had. Answers come in the order of asks. Written and read by runtime/way.py and
             supervisor/connections/inner.py
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

MANY = 64  # beats that are read at once
ASK_BYTES = 128  # of the longest address
HERE, NONE_LEFT = b"+", b"-"  # answers: with a descriptor, and without
MOST_ASKED = 64  # asks that may wait for their answers


def _layout(gauges: int) -> struct.Struct:
    return struct.Struct(f"<{gauges}Q" if gauges else "x")


def beat_of(gauges: Sequence[int]) -> bytes:
    """The loop has turned."""
    return _layout(len(gauges)).pack(*gauges)


def read_beats(fd: int, gauges: int) -> tuple[int, ...] | None:
    """The last one that was written; None if there comes no more. A pipe takes such a record whole."""
    layout = _layout(gauges)
    data = os.read(fd, MANY * layout.size)
    return layout.unpack_from(data, len(data) - layout.size) if data else None
