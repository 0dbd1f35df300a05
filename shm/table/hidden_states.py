"""Hidden states of requests that ask for them: written by the worker, read by the frontend of the slot.

Laid out as vectors.py says, with a row for each position of the token log, and a cursor that says how far rows have
come. The worker writes the rows of a step before it tells that the step is done: when the frontend is told of a token,
those of all positions before it are there. A position that was computed for a draft which was wrong is written again
once its token is known, as is all that somebody computes again; nobody reads behind what was told.
The worker dies between two stores: the cursor is short, and its successor, which computes the step again, writes it.
"""

from __future__ import annotations

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, LOW32, WORD_BYTES, generation_of
from .vectors import COLUMNS, CURSOR, NUMBER_BYTES, RequestedRows


class HiddenStates(RequestedRows):
    """All slots' rows."""

    def write_rows(self, ref: int, first: int, rows: int, columns: int, data: bytes | memoryview) -> None:
        """Those from a position on."""
        start, size = self._start(ref), NUMBER_BYTES * columns
        if len(data) != rows * size or (first + rows) * columns > self.numbers:
            raise ValueError(f"{len(data)} bytes of {rows} rows from {first} on; {self.numbers} numbers fit")
        word, generation = start // WORD_BYTES, generation_of(ref)
        before = self._words[word + CURSOR]
        load_fence()
        known = before & LOW32 if before >> 32 == generation else 0
        begin = start + CACHE_LINE + first * size
        self.map[begin : begin + len(data)] = data
        self._words[word + COLUMNS] = columns
        store_fence()
        known = max(known, first + rows)
        self._words[word + CURSOR] = generation << 32 | known  # SYNC: vectors.cursor, pairs with read
