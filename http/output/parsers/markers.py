"""Markers in a text that comes in cuts: where the first one stands, and how much of the end may still become one."""

from __future__ import annotations

import re
from functools import cache


class Markers:
    """Several markers, looked for together.

    None may stand inside another, but at its end: then the first match is the same however the text was cut.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        for one in texts:
            inside = [other for other in texts if other != one and one in other[:-1]]
            if not one or inside:
                raise ValueError(f"marker {one!r} is empty or stands inside {inside}")
        self._texts = texts
        self._longest = max(map(len, texts), default=1)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def find(self, text: str, at: int) -> tuple[int, str] | None:
        """(where it begins, which it is): the first from `at` on."""
        match = self._pattern.search(text, at)
        return (match.start(), match.group()) if match else None

    def free(self, text: str, at: int) -> int:
        """Where the longest end of the text begins that is the beginning of a marker; no marker is in it whole."""
        for start in range(max(at, len(text) - self._longest + 1), len(text)):
            if self.begins(text, start):
                return start
        return len(text)

    def begins(self, text: str, at: int) -> bool:
        """Could what stands from `at` to the end become a marker?"""
        return any(len(one) > len(text) - at and one.startswith(text[at:]) for one in self._texts)

    def here(self, text: str, at: int) -> str | None:
        """The marker that stands at this place."""
        match = self._pattern.match(text, at)
        return match.group() if match else None


@cache
def markers(*texts: str) -> Markers:
    """They are few and written in the code, so each set is made once."""
    return Markers(texts)
