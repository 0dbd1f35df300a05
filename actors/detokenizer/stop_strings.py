"""Stop strings in a text that comes in pieces: cut at the first match, hold back no more than could become one.

The first match is the one that is complete first, and of those the one that begins first: this does not depend on how
the text is cut into pieces, so that a replay finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one sequence and the end of its text that may still become one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include  # the match stays in the text
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that can be given out, the stop string that was found or None). After a match nothing more may come."""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return text[: end if self._include else start], stop
        keep = self._possible(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """No more text comes: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = min(len(text), max((len(stop) for stop in self._stops), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
