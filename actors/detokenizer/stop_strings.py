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

    def push(self, text: str, counts: bool = True) -> tuple[str, str | None]:
        """(text that can be given out, the stop string that was found or None). After a match nothing more may come.

        `counts` False: what this text completes is no match; it may be the beginning of one.
        """
        held, text = len(self._held), self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._find(stop, text, held)) >= 0]
        if found and counts:
            end, start, stop = min(found)
            self._held = ""
            return text[: end if self._include else start], stop
        keep = self._possible(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def _find(self, stop: str, text: str, held: int) -> int:
        """Where it begins; it must end behind what was held."""
        return text.find(stop, max(0, held + 1 - len(stop)))

    def flush(self) -> str:
        """No more text comes: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string, and not all of it."""
        longest = min(len(text), max((len(stop) for stop in self._stops), default=1) - 1)
        return next((count for count in range(longest, 0, -1) if self._begins(text[-count:])), 0)

    def _begins(self, tail: str) -> bool:
        return any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops)
