"""An answer as it is shown: on a terminal, or through a pipe.

What a model writes is shown, and does nothing: control characters of a terminal are made visible.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator

from rich.console import Console
from rich.text import Text

from .client import VISIBLE, ChatError, Client, Piece

FAILED = 1
INTERRUPTED = 130
LONGEST = {"length": "cut off: it is as long as it may be", "error": "broken off by an error of the server"}


class Screen:
    """Standard output for answers, standard error for what is said of them."""

    def __init__(self) -> None:
        self._shown = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
        self._beside = Console(stderr=True, highlight=False, emoji=False, markup=False, soft_wrap=True)

    def answer(self, client: Client, pieces: Generator[Piece], said: list[str]) -> int:
        """Show an answer as it comes, which is kept in `said`; the exit status."""
        try:
            with contextlib.closing(pieces):
                self._show(pieces, said)
        except KeyboardInterrupt:
            self._end_line(said)
            self.note("interrupted")
            return INTERRUPTED
        except ChatError as error:
            self._end_line(said)
            self._beside.print(f"actorserve: error: {error}", style="red")
            return FAILED
        self._end_line(said)
        if note := LONGEST.get(client.finish_reason):
            self.note(note)
        return 0

    def note(self, text: str) -> None:
        """What is none of the answer; it stands on a terminal alone."""
        if self._beside.is_terminal:
            self._beside.print(Text(text, "dim"))

    def new_line(self) -> None:
        """Behind what was typed."""
        self._beside.print()

    def _show(self, pieces: Iterator[Piece], said: list[str]) -> None:
        """Thinking is shown on a terminal alone: what goes into a file is the answer."""
        thought = False
        for text, thinking in pieces:
            if thinking:
                if self._shown.is_terminal:
                    thought = True
                    self._write(text, "dim")
                continue
            if thought and not said:
                self._write("\n\n", None)
            said.append(text)
            self._write(text, None)

    def _write(self, text: str, style: str | None) -> None:
        if self._shown.is_terminal:
            self._shown.print(Text(text.translate(VISIBLE), style or ""), end="")
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _end_line(self, said: list[str]) -> None:
        if self._shown.is_terminal or (said and not said[-1].endswith("\n")):
            sys.stdout.write("\n")
            sys.stdout.flush()
