"""Where the words of the ledger lie (ledger.py says what they mean): for whoever makes room for it, without numpy."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from ..layout import CACHE_LINE, WORD_BYTES, whole

WINDOW = 64  # seconds that a column knows
MINUTE = 60  # of them, those that a limit a minute is about, and the present one
TOTALS = 8  # words
COLUMN_WORDS = TOTALS + 2 * WINDOW
LINE_WORDS = 4
RECORD_WORDS = 16

STATE, REF, ENTRY, REQUESTS, PROMPT, COMPLETION, ASKED_AT, ASKED, USED_AT, USED, ADMISSION, ADMISSIONS = range(12)


class Total(IntEnum):
    """Words of a column."""

    REQUESTS = 0
    PROMPT = 1
    COMPLETION = 2
    REFUSED_REQUESTS = 3
    REFUSED_TOKENS = 4
    REFUSED_CONCURRENT = 5
    REFUSED_BUDGET = 6


class Flag(IntFlag):
    """Of a slot's line."""

    HELD = 1
    CHARGED = 2
    PAYS_REQUEST = 4  # it stands for its request
    PAYS_PROMPT = 8  # it stands for a prompt, of which there may be several answers


def ledger_bytes(frontends: int, entries: int, slots: int) -> int:
    """Of a segment."""
    words = frontends * (RECORD_WORDS + entries * COLUMN_WORDS) + slots * LINE_WORDS
    return whole(words * WORD_BYTES, CACHE_LINE)
