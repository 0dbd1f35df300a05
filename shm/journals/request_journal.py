"""What clients have sent and nobody has answered yet: the raw bytes of each connection's request, in its own record.

A record belongs to the frontend that serves its connection, which alone writes it; a successor reads it. Layout: one
page of words, then the bytes. Counts are of the connection's whole life, as the kernel counts them.
    rest      bytes read when the connection last stood between two requests
    begin     the value of rest: somebody has looked at the request, and the answers' record speaks of it;
              NOT_BEGUN: nobody has; LOST: the bytes are not all here; UPGRADED: it is no request, but what a client
              sends over a WebSocket, of which `rest` says from where on it is wanted
    length    bytes that stand in the record, for its writer
    life      whose request it is, of all lives of all frontends; 0: nobody has read it since a death
    deaths    of how many lives it is suspect that have ended while it had neither slots nor an answer
The kernel puts what it reads into the record itself: its count less rest says how much of it is the request, and no
death comes between. Memory is taken when it is written, and given back when a long request is over
(pages.py).
"""

from __future__ import annotations

import mmap
import os

from ..fence import load_fence, store_fence
from ..layout import PAGE, whole
from ..pages import give_back
from .byte_ring import data_start, region_bytes, region_words

REST, BEGIN, LENGTH, LIFE, DEATHS = range(5)
LONG = 1 << 16  # bytes of a request whose memory is given back
MOST_READ = 1 << 18  # bytes, at once
LOST, NOT_BEGUN, UPGRADED = (1 << 64) - 1, (1 << 64) - 2, (1 << 64) - 3


class RequestJournal:
    """Records 0 to count - 1, of `room` bytes each. Numbers beyond are nobody's: nothing is kept of them."""

    def __init__(self, fd: int, count: int, room: int, life: int = 1) -> None:
        """`life`: its writer's, whose predecessor has the number before it; not 0."""
        self.count = count
        self._life = life
        self._room = whole(room, PAGE)
        self._region_words = region_words(room)
        self._map = mmap.mmap(fd, journal_bytes(count, room))
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    @staticmethod
    def create(count: int, room: int) -> int:
        """The descriptor of a memory file for such a journal. It has no name, and no size but what is written."""
        fd = os.memfd_create("actorserve-journal", os.MFD_CLOEXEC)
        os.ftruncate(fd, journal_bytes(count, room))
        return fd

    # --- the connection's frontend -------------------------------------------------------------------------------

    def rest(self, number: int, read: int) -> None:
        """Nothing is under way on this connection, of which so many bytes were read."""
        if number < self.count:
            words, first = self._words, self._first(number)
            words[first + REST] = read  # SYNC: journal.rest: from here on the record speaks of nothing
            store_fence()
            words[first + BEGIN] = NOT_BEGUN
            length = words[first + LENGTH]
            words[first + LENGTH] = 0
            if length > LONG:
                self._free(first)

    def upgrade(self, number: int) -> None:
        """What comes from here on is no request; what it is, is written down elsewhere."""
        words, first = self._words, self._first(number)
        if words[first + BEGIN] != LOST:
            words[first + BEGIN] = UPGRADED  # SYNC: journal.upgrade

    def pass_over(self, number: int, upto: int, read: int) -> None:
        """Of what was read on an upgraded connection, nobody wants the bytes before `upto`.

        Where that is all there is, a death between the stores changes nothing: nothing is read in between. Otherwise
        they stay until half of the room is full; while the rest is put in their place nobody can go on.
        """
        words, first = self._words, self._first(number)
        left, length = read - upto, words[first + LENGTH]
        if not left:
            words[first + REST] = upto
            store_fence()
            words[first + LENGTH] = 0
            words[first + BEGIN] = UPGRADED  # also where bytes were lost that nobody wants any more
            if length > LONG:
                self._free(first)
        elif words[first + BEGIN] == UPGRADED and length > self._room // 2 and upto > words[first + REST]:
            words[first + BEGIN] = LOST
            store_fence()
            start, skip = data_start(first), upto - words[first + REST]
            self._map[start : start + left] = self._map[start + skip : start + skip + left]
            words[first + REST] = upto
            words[first + LENGTH] = left
            store_fence()
            words[first + BEGIN] = UPGRADED

    def give_up(self, number: int) -> None:
        """A request was answered before all of it has come, and nobody goes on with it: what is long is not kept."""
        words, first = self._words, self._first(number)
        if number < self.count and words[first + LENGTH] > LONG:
            words[first + BEGIN] = LOST  # before anything is gone
            store_fence()
            words[first + LENGTH] = 0
            self._free(first)

    def _free(self, first: int) -> None:
        give_back(self._map, data_start(first), self._room)

    def room(self, number: int) -> memoryview | None:
        """Where the kernel is to put what it reads next; None if it shall not be kept."""
        if number >= self.count:
            return None
        words, first = self._words, self._first(number)
        length = words[first + LENGTH]
        if length >= self._room:
            words[first + BEGIN] = LOST  # before anything more is read
        if words[first + BEGIN] == LOST:
            return None
        start = data_start(first)
        return self._bytes[start + length : start + min(length + MOST_READ, self._room)]

    def begin(self, number: int) -> None:
        """Something has come after a rest, and the answers' record is ready for it."""
        if number < self.count:
            words, first = self._words, self._first(number)
            if words[first + BEGIN] != LOST:
                words[first + DEATHS] = 0
                words[first + LIFE] = self._life
                store_fence()
                words[first + BEGIN] = words[first + REST]  # SYNC: journal.begin

    def filled(self, number: int, size: int) -> None:
        """So many bytes were read into the room."""
        if number < self.count:
            self._words[self._first(number) + LENGTH] += size

    # --- its successor -------------------------------------------------------------------------------------------

    def is_at_rest(self, number: int, read: int) -> bool:
        """Nothing was under way when so many bytes had been read."""
        return number < self.count and self._words[self._first(number) + REST] == read

    def is_upgraded(self, number: int) -> bool:
        """Is what comes no request?"""
        return number < self.count and self._words[self._first(number) + BEGIN] == UPGRADED

    def since(self, number: int, start: int, read: int) -> tuple[bytes, bytes] | None:
        """(all that is here of what an upgraded connection's client has sent, what follows on `start`)."""
        first = self._first(number)
        rest = self._words[first + REST]
        if not rest <= start <= read or read - rest > self._room:
            return None
        load_fence()
        begin = data_start(first)
        came = self._map[begin : begin + read - rest]
        return came, came[start - rest :]

    def request(self, number: int, read: int) -> bytes | None:
        """What has come of a request; None if not all that was read is here."""
        if number >= self.count:
            return None
        first = self._first(number)
        length = read - self._words[first + REST]
        if self._words[first + BEGIN] == LOST or not 0 < length <= self._room:
            return None
        load_fence()
        start = data_start(first)
        return self._map[start : start + length]

    def is_begun(self, number: int) -> bool:
        """Has somebody looked at the request, so that the answers' record speaks of it?"""
        first = self._first(number)
        return self._words[first + BEGIN] == self._words[first + REST]

    def deaths(self, number: int, is_blamed: bool) -> int:
        """Of how many lives it is suspect, with the last if that `is_blamed` and had it. Until it is taken up it is no
        further one's; who dies between the stores is not counted.
        """
        words, first = self._words, self._first(number)
        found: int = words[first + DEATHS] + (is_blamed and words[first + LIFE] == self._life - 1)
        words[first + LIFE] = 0
        store_fence()
        words[first + DEATHS] = found
        return found

    def take_up(self, number: int) -> None:
        """It is read again."""
        self._words[self._first(number) + LIFE] = self._life

    def take_over(self, number: int, request: bytes, skip: int = 0) -> None:
        """This request stands in the record, and is gone on with. `skip`: so much of it is answered, and nobody has
        looked at what is behind; while that is put in its place, nobody can go on with it.
        """
        words, first = self._words, self._first(number)
        if skip:
            words[first + BEGIN] = LOST
            store_fence()
            start = data_start(first)
            self._map[start : start + len(request) - skip] = request[skip:]
            words[first + REST] += skip
            store_fence()
            words[first + BEGIN] = NOT_BEGUN
        words[first + LENGTH] = len(request) - skip

    def _first(self, number: int) -> int:
        """The record's first word."""
        return number * self._region_words


def journal_bytes(count: int, room: int) -> int:
    """The size of the file."""
    return count * region_bytes(room)
