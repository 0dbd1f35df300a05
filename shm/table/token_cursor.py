"""One use of a slot of the request table as its detokenizer follows it, step by step.

What RequestTable finds out at each call stands here once: where the slot's words lie, and their generation.
"""

from __future__ import annotations

from ..fence import load_fence
from ..layout import LOW32, generation_of, slot_of
from .layout import FINISH, GENERATION, TEXT, TOKENS
from .table import RequestTable


class TokenCursor:
    """Of the ref's use; a successor makes its own."""

    __slots__ = ("_control", "_generation", "_words")

    def __init__(self, table: RequestTable, ref: int) -> None:
        self._words = table.segment.words
        self._control = table.control_word(slot_of(ref))
        self._generation = generation_of(ref)

    def look(self) -> tuple[int, int] | None:
        """(generated tokens in the log, why the sequence ended or 0); None once the slot has a newer use."""
        words, control, generation = self._words, self._control, self._generation
        finish = words[control + FINISH]  # SYNC: table.finish; before the tokens cursor, which is stored first
        load_fence()
        tokens = words[control + TOKENS]  # SYNC: table.tokens
        load_fence()
        if words[control + GENERATION] != generation:  # SYNC: table.open
            return None
        return (
            tokens & LOW32 if tokens >> 32 == generation else 0,
            finish & LOW32 if finish >> 32 == generation else 0,
        )

    def set_text(self, count: int) -> None:
        """So many generated tokens were turned to text and sent."""
        self._words[self._control + TEXT] = self._generation << 32 | count
