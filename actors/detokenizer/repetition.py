"""A text that repeats itself: its last tokens are one pattern again and again, as a request bounds that.

It depends on the tokens alone, however many come at a time, so that a replay finds the same.
"""

from __future__ import annotations

from ..protocol.request import RepeatLimit


class Repetition:
    """Of one sequence: how far it has repeated patterns of each length."""

    def __init__(self, limit: RepeatLimit) -> None:
        self._sizes = range(max(1, limit.least), limit.most + 1)
        self._more = limit.times - 1  # how often a pattern must come again
        self._runs = dict.fromkeys(self._sizes, 0)  # tokens that are as the one so many before them
        self._last: list[int] = []
        self._kept = limit.most

    def push(self, token: int) -> bool:
        """One more token; does a pattern end here that has come so many times?"""
        last, runs, found = self._last, self._runs, False
        for size in self._sizes:
            if size > len(last):
                break
            runs[size] = runs[size] + 1 if last[-size] == token else 0
            found |= runs[size] >= size * self._more
        last.append(token)
        if len(last) > 2 * self._kept:
            del last[: -self._kept]
        return found
