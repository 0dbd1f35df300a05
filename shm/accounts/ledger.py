"""What clients' keys have used: a column for each frontend, and by which key each slot of the request table runs.

Every word has one writer: a frontend writes its own column, its own record, and the lines of its own slots. What a key
has used is the sum over all columns; what it runs now stands in the lines of the slots, so that it follows sequences
and not processes: a frontend's successor has the same column and the same slots.

    record    of each frontend: the stores that are under way, as values and not as differences (below)
    column    of each frontend and key: requests, tokens of prompts, tokens of answers, refusals by reason; then for
              each of the last WINDOW seconds `second << 32 | requests`, and the same of tokens
    line      of each slot: generation << 32 | entry << 8 | flags; number of its admission; second of that; tokens
              that are reserved for it

A charge changes several words, and must count once, whichever of its stores is a process's last one. So the values
that they are to have are written into the record, then its state, then the words, then the line's CHARGED, then the
state again. Who finds a state that is set stores the same values once more (`recover`): after a death
    before the state       nothing was charged; the slot's line says so, and the successor charges it when its end comes
    behind it              all is charged
An admission counts the request, and only then opens slots; its record holds what the window had before. After a death
    before its state is gone   the request is not counted: it lies in the connection's journal, and is admitted again.
                               Slots that were opened for it have the admission's number, and are charged to nobody
    behind it                  it is counted; a slot that nobody goes on with takes it back (`drop`)

Who lets requests in adds up columns and lines and then writes its own: `lock` keeps others from doing so meanwhile. It
belongs to an open file description, so that the kernel releases it when its holder dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..end_lock import FLOCK
from ..layout import LOW32, WORD_BYTES, check_place, slot_of
from ..segment import Segment
from .layout import (
    ADMISSION,
    ADMISSIONS,
    ASKED,
    ASKED_AT,
    COLUMN_WORDS,
    COMPLETION,
    ENTRY,
    LINE_WORDS,
    MINUTE,
    PROMPT,
    RECORD_WORDS,
    REF,
    REQUESTS,
    STATE,
    TOTALS,
    USED,
    USED_AT,
    WINDOW,
    Flag,
    Total,
    ledger_bytes,
)

Words = npt.NDArray[np.uint64]


class Line(NamedTuple):
    """A slot's."""

    entry: int
    flags: Flag
    admission: int
    second: int
    reserved: int


class Ledger:
    """As anybody reads it."""

    def __init__(self, segment: Segment, offset: int, frontends: int, entries: int, slots: int) -> None:
        check_place(segment.size, offset, ledger_bytes(frontends, entries, slots), "ledger")
        self._words = segment.words
        self._offset, self._entries = offset, entries
        self._records = offset // WORD_BYTES
        self._columns = self._records + frontends * RECORD_WORDS
        self._lines = self._columns + frontends * entries * COLUMN_WORDS
        everything = np.frombuffer(segment.map, np.uint64, self._lines + slots * LINE_WORDS)
        self._all: Words = everything[self._columns : self._lines].reshape(frontends, entries, COLUMN_WORDS)
        self._slots: Words = everything[self._lines :].reshape(slots, LINE_WORDS)

    def totals(self, entry: int) -> list[int]:
        """What the key has used, by Total."""
        return [int(total) for total in self._all[:, entry, :TOTALS].sum(axis=0)]

    def window(self, entry: int, now: int, tokens: bool = False) -> list[tuple[int, int]]:
        """(second, how much) of what still counts in this second, oldest first."""
        start = TOTALS + WINDOW * tokens
        words = self._all[:, entry, start : start + WINDOW].ravel()
        seconds, amounts = words >> np.uint64(32), words & np.uint64(LOW32)
        counts = (seconds + np.uint64(MINUTE) >= np.uint64(now)) & (amounts > 0)
        return sorted(zip(seconds[counts].tolist(), amounts[counts].tolist(), strict=True))

    def running(self, entry: int) -> list[tuple[int, Line]]:
        """(ref, line) of the slots that the key's sequences have, as long as they are not charged."""
        mask, wanted = np.uint64(LOW32 & ~0xFF | Flag.HELD | Flag.CHARGED), np.uint64(entry << 8 | Flag.HELD)
        (found,) = np.nonzero((self._slots[:, 0] & mask) == wanted)
        return [one for slot in found.tolist() if (one := self._line_at(slot))[1].entry == entry]

    def _line_at(self, slot: int) -> tuple[int, Line]:
        owner, admission, second, reserved = self._slots[slot].tolist()
        return owner >> 32 << 32 | slot, Line(owner >> 8 & 0xFFFFFF, Flag(owner & 0xFF), admission, second, reserved)

    def line(self, ref: int) -> Line | None:
        """The line of this use of a slot, if it is some key's and is not charged yet."""
        found, line = self._line_at(slot_of(ref))
        return line if found == ref and Flag.HELD in line.flags and Flag.CHARGED not in line.flags else None


class LedgerWriter(Ledger):
    """As a frontend writes it."""

    def __init__(
        self, segment: Segment, offset: int, frontends: int, entries: int, slots: int, own: tuple[int, int, int]
    ) -> None:
        """`own`: the number of this frontend, its first slot, and how many it has."""
        super().__init__(segment, offset, frontends, entries, slots)
        self._index, self._first_slot, self._count = own
        self._record = self._records + self._index * RECORD_WORDS
        self._file = segment.reopen()
        self._recover()

    # --- letting in ----------------------------------------------------------------------------------------------

    def lock(self, entry: int) -> bool:
        """Nobody else lets requests of this key in until `unlock`; False if somebody else does so now."""
        try:
            self._set_lock(fcntl.F_WRLCK, entry)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def unlock(self, entry: int) -> None:
        self._set_lock(fcntl.F_UNLCK, entry)

    def _set_lock(self, kind: int, entry: int) -> None:
        place = self._columns * WORD_BYTES + entry * COLUMN_WORDS * WORD_BYTES
        fcntl.fcntl(
            self._file, fcntl.F_OFD_SETLK, struct.pack(FLOCK, kind, os.SEEK_SET, place, COLUMN_WORDS * WORD_BYTES, 0)
        )

    def refuse(self, entry: int, why: Total) -> None:
        self._words[self._column(entry) + why] += 1

    def admit(self, entry: int, now: int) -> int:
        """A request is let in; the number of its admission. `opened` says that its slots are open."""
        words, record = self._words, self._record
        asked_at = TOTALS + now % WINDOW
        before = words[self._column(entry) + asked_at]
        words[record + ADMISSIONS] += 1
        admission = self._index << 48 | words[record + ADMISSIONS]
        self._note(0, entry, (0, 0, 0), (asked_at, before), (0, 0), admission)
        words[self._column(entry) + asked_at] = _more(before, now, 1)
        return admission

    def hold(self, ref: int, line: Line) -> None:
        """The slot runs for this key."""
        at = self._lines + slot_of(ref) * LINE_WORDS
        self._words[at + 1], self._words[at + 2], self._words[at + 3] = line.admission, line.second, line.reserved
        self._words[at] = ref >> 32 << 32 | line.entry << 8 | line.flags

    def reserve(self, ref: int, tokens: int) -> None:
        """So many are enough for it."""
        if self.line(ref) is not None:
            self._words[self._lines + slot_of(ref) * LINE_WORDS + 3] = tokens

    def opened(self) -> None:
        """All slots of the last admission are open; or there are none, and it counts all the same."""
        self._words[self._record + STATE] = 0

    def withdraw(self) -> None:
        """No slots were opened: the last admission did not take place."""
        self._recover()

    # --- charging ------------------------------------------------------------------------------------------------

    def charge(self, ref: int, prompt: int, completion: int, now: int) -> None:
        """The slot's sequence has ended with so many tokens. It may be said again. A prompt is paid for once."""
        line = self.line(ref)
        if line is not None:
            requests = int(Flag.PAYS_REQUEST in line.flags)
            self._charge(ref, line, (requests, prompt if Flag.PAYS_PROMPT in line.flags else 0, completion), now)

    def drop(self, ref: int, now: int, refund: bool = True) -> None:
        """Nobody has got anything of the slot: nothing is charged. `refund`: nor was there a request."""
        line = self.line(ref)
        if line is not None:
            self._charge(ref, line, (0, 0, 0), now, refund and Flag.PAYS_REQUEST in line.flags)

    def charge_alone(self, entry: int, prompt: int, completion: int, now: int) -> None:
        """Of a request that has no slot of its own by now."""
        self._charge(0, Line(entry, Flag.HELD, 0, now, 0), (1, prompt, completion), now)

    def _charge(self, ref: int, line: Line, more: tuple[int, int, int], now: int, refund: bool = False) -> None:
        words, column = self._words, self._column(line.entry)
        asked_at, used_at = TOTALS + line.second % WINDOW, TOTALS + WINDOW + now % WINDOW
        asked, used = words[column + asked_at], words[column + used_at]
        if refund and asked >> 32 == line.second and asked & LOW32:
            asked -= 1
        totals = [words[column + at] + one for at, one in enumerate(more)]
        if tokens := more[1] + more[2]:
            used = _more(used, now, tokens)
        self._note(ref, line.entry, totals, (asked_at, asked), (used_at, used), 0)
        self._recover()

    def _note(self, ref: int, entry: int, totals: Any, asked: tuple[int, int], used: tuple[int, int], of: int) -> None:
        """Which values words are to have. An admission (`of`) notes what they had: totals are not among it."""
        words, record = self._words, self._record
        words[record + REF], words[record + ENTRY] = ref, entry
        words[record + REQUESTS], words[record + PROMPT], words[record + COMPLETION] = totals
        words[record + ASKED_AT], words[record + ASKED] = asked
        words[record + USED_AT], words[record + USED] = used
        words[record + ADMISSION] = of
        words[record + STATE] = 1

    def _recover(self) -> None:
        """What is noted is stored, if something is."""
        words, record = self._words, self._record
        if not words[record + STATE]:
            return
        column, admission = self._column(words[record + ENTRY]), words[record + ADMISSION]
        words[column + words[record + ASKED_AT]] = words[record + ASKED]
        if admission:
            for slot in range(self._first_slot, self._first_slot + self._count):
                if words[self._lines + slot * LINE_WORDS + 1] == admission:
                    self._set_charged(slot)
        else:
            for at, value in enumerate((REQUESTS, PROMPT, COMPLETION)):
                words[column + at] = words[record + value]
            words[column + words[record + USED_AT]] = words[record + USED]
            if ref := words[record + REF]:
                self._set_charged(slot_of(ref))
        words[record + STATE] = 0

    def _set_charged(self, slot: int) -> None:
        self._words[self._lines + slot * LINE_WORDS] |= Flag.CHARGED

    def _column(self, entry: int) -> int:
        return self._columns + (self._index * self._entries + entry) * COLUMN_WORDS


def _more(word: int, second: int, amount: int) -> int:
    """A word of a window, with so much more in this second."""
    return (word if word >> 32 == second else second << 32) + amount
