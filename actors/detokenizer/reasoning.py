"""Where a text thinks and where it answers: stop strings count in the answer only, and thinking is counted.

Which is which depends on the text alone, not on how it is cut into pieces. Says nothing of how the client is told:
the frontend's parsers do.
"""

from __future__ import annotations

from ..protocol.request import Think


class ThinkingGate:
    """One sequence's text, told apart. `opened`: it begins inside the thinking, as the renderer has found."""

    def __init__(self, think: Think, opened: bool) -> None:
        self._think = think
        self._held = ""  # the beginning, as long as it may become the start; later what may become the end
        self.inside: bool | None = True if opened else None  # None: not known yet
        self.is_over = False

    def push(self, text: str) -> tuple[str, str]:
        """(text of the thinking with its marks, text of the answer) that this makes known."""
        if self.is_over:
            return "", text
        if self.inside is None:
            self._held += text
            begun = self._held.lstrip()
            if self._think.start.startswith(begun) and begun != self._think.start:
                return "", ""
            text, self._held = self._held, ""
            self.inside = begun.startswith(self._think.start)
            self.is_over = not self.inside
        return self._until_the_end(text) if self.inside else ("", text)

    def _until_the_end(self, text: str) -> tuple[str, str]:
        end = self._think.end
        seen = self._held + text
        at = seen.find(end)
        if at < 0:
            self._held = seen[max(0, len(seen) - len(end) + 1) :]
            return text, ""
        self.is_over, self.inside = True, False
        cut = at + len(end) - (len(seen) - len(text))
        return text[:cut], text[cut:]

    def flush(self) -> str:
        """No more text comes: the beginning that was held back is no thinking."""
        held = self._held if self.inside is None else ""
        self._held = ""
        return held
