"""Prompts that clients gave as embeddings: written by a renderer, read by workers and the scheduler of the slot.

Laid out as vectors.py says, with rows for the prompt's first positions; behind the columns stands a digest of them:
    2, 3  digest: the same rows, the same digest
A renderer writes all that, then publishes the prompt. If it dies between the two, its successor is given the message
again and writes the same. The frontend gives the memory back with the slot, so that whoever computes the sequence,
for the first time or anew, reads the same rows. A sequence that was cancelled may be read while a later use of its slot
is written: its generation is another then, or becomes so, and what is computed of it is told to nobody.
"""

from __future__ import annotations

from ..fence import load_fence
from ..layout import CACHE_LINE, LOW32, WORD_BYTES, generation_of
from .vectors import COLUMNS, CURSOR, NUMBER_BYTES, RequestedRows

DIGEST = 2
DIGEST_BYTES = 16


class PromptEmbeds(RequestedRows):
    """All slots' rows."""

    def write_prompt(self, ref: int, rows: int, columns: int, data: bytes | memoryview, digest: bytes) -> None:
        """The rows of a prompt's first positions."""
        place = self._start(ref) + WORD_BYTES * DIGEST
        self.map[place : place + DIGEST_BYTES] = digest
        self.write(ref, rows, columns, data)

    def given(self, ref: int) -> tuple[int, bytes] | None:
        """(how many of the prompt's first positions have rows, their digest); None if this use of the slot has none."""
        start = self._start(ref)
        cursor = self._words[start // WORD_BYTES + CURSOR]  # SYNC: vectors.cursor
        load_fence()
        if cursor >> 32 != generation_of(ref):
            return None
        place = start + WORD_BYTES * DIGEST
        return cursor & LOW32, self.map[place : place + DIGEST_BYTES]

    def some(self, ref: int, first: int, count: int) -> bytes | None:
        """float32 of some of the rows; None if they are not, or are no more, those of this use of the slot."""
        start = self._start(ref)
        word = start // WORD_BYTES
        cursor = self._words[word + CURSOR]  # SYNC: vectors.cursor
        load_fence()
        size = NUMBER_BYTES * self._words[word + COLUMNS]
        if cursor >> 32 != generation_of(ref) or first + count > cursor & LOW32:
            return None
        begin = start + CACHE_LINE + first * size
        found = self.map[begin : begin + count * size]
        load_fence()
        return found if self._words[word + CURSOR] == cursor else None
