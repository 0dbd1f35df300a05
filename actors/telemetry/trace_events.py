"""The kinds of events in the actors' traces (shm/rings/trace_ring.py), and what their numbers are; times are monotonic
ns.

Written once for a turn, a record or a step, never for a token.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from time import monotonic_ns

from actorserve.shm.layout import LOW32
from actorserve.shm.rings.trace_ring import TraceWriter

BITS = 24  # of the lower one of two counts in a small number


class EventKind(IntEnum):
    """What happened, with (first, second, small). A span's event is written at its end, with its length in `first`."""

    STARTED = 1  # incarnation | the predecessor's last heartbeat | how that ended
    TURN = 2  # span | messages and other work done
    RECEIVED = 3  # the record's stamp | messages | which of the lanes that lead here
    PLANNED = 4  # step | queues | counts
    APPLIED = 5  # step | queues
    STEP = 6  # span | step | counts
    FLUSH = 7  # span | answers that were gone on with
    RENDERING = 8  # span | ref of the first choice | choices


def counts(rows: int, tokens: int) -> int:
    """Two counts as one small number."""
    return rows << BITS | min(tokens, (1 << BITS) - 1)


def read_counts(small: int) -> tuple[int, int]:
    """(rows, tokens)."""
    return small >> BITS, small & (1 << BITS) - 1


def queues(running: int, waiting: int) -> int:
    """How many sequences run and wait, as one number."""
    return running << 32 | waiting


def read_queues(number: int) -> tuple[int, int]:
    """(running, waiting)."""
    return number >> 32, number & LOW32


def hearer(trace: TraceWriter) -> Callable[[int, int, int], None]:
    """What an Inbox tells of its records, just before they are handled. It refers to nothing but the trace."""
    add, received = trace.add, int(EventKind.RECEIVED)  # an attribute of an enumeration is slow to come by

    def heard(lane: int, stamp_ns: int, count: int) -> None:
        add(monotonic_ns(), received, stamp_ns, count, lane)

    return heard
