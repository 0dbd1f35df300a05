"""What an actor works on, on the board, so that its successor knows on what it died.

A request on which one actor dies again and again must not take the server with it. Each try is counted before it
begins; what was in flight at two deaths is tried once more, and then given up. One at which the actor's loop stood
still while it burned CPU (an endless template, an exploding pattern) is given up at once: it would do so again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import IntEnum

import msgspec

from actorserve.shm.board.board import BoardWriter
from actorserve.shm.table.table import RequestTable

from ..protocol.request import Generation
from ..telemetry.log_format import RequestName

MOST_TRIES = 3
CALL = 1 << 62  # set in what is in flight when it is a call's number and not a ref


class Ended(IntEnum):
    """How an actor's life ended, as its supervisor tells the successor."""

    NEVER = 0  # there was none
    DIED = 1
    HUNG = 2  # it was killed: its loop did not turn, and it was busy
    REPLACED = 3  # it was told to
    OUTSIDE = 4  # somebody else killed or stopped it


NO_REQUEST = (Ended.REPLACED, Ended.OUTSIDE)  # ends of which none that was worked on is the cause


def request_name(table: RequestTable, ref: int) -> RequestName:
    """How logs and answers name the request in this slot."""
    try:
        name = msgspec.msgpack.decode(table.params(ref), type=Generation).request_id
    except msgspec.DecodeError:  # its frontend has reused the slot meanwhile
        name = ""
    return RequestName(name, hex(ref))


def is_named(table: RequestTable, ref: int, names: Collection[str]) -> bool:
    """Is the request in this slot one of these? They are clients' names, or ids of answers: made of such a name, with
    a word and a dash before it, or of the slot's seed.
    """
    own, seed = request_name(table, ref).request_id, f"{table.seed(ref):016x}"
    return own in names or any(seed in name or (own and name.partition("-")[2] == own) for name in names)


def log_debug(log: logging.Logger, text: str, table: RequestTable, ref: int) -> None:
    """A line with the name of the request, which is looked up only if somebody wants it."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug(text, request_name(table, ref))


class GivenUp(Exception):
    """This request is not tried again. `hung` says that it was for its time."""

    def __init__(self, hung: bool) -> None:
        super().__init__("given up")
        self.hung = hung


class InFlight:
    """What one actor works on; it finds here what its predecessor worked on when it died."""

    def __init__(self, status: BoardWriter, ended: Ended) -> None:
        self._status = status
        self._suspect, self._tries = status.in_flight
        self._hung = ended is Ended.HUNG
        status.set_in_flight(self._suspect, self._tries)  # clears what a death between two stores has left

    @contextmanager
    def hold(self, what: int) -> Iterator[None]:
        """Work on `what`, a ref or CALL | a call's number. GivenUp if that has cost too many lives.

        An exception that leaves the block ends the process; so it stays on the board, for the successor to find.
        """
        self.take(what)
        yield
        self.drop()

    def take(self, what: int) -> None:
        """As `hold` begins, for those who do it too often for a context manager."""
        tries = 0
        if what == self._suspect:
            tries, self._suspect = self._tries, 0
            if self._hung or tries >= MOST_TRIES:
                self._status.give_up()
                raise GivenUp(self._hung)
        self._status.set_in_flight(what, tries + 1)
        self._status.beat()

    def drop(self) -> None:
        """The work is done."""
        self._status.set_in_flight(0, 0)
