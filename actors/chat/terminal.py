"""The chat on a terminal, or through pipes: reads messages, shows answers as they come, hears Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from .client import Client
from .conversation import Conversation, Next
from .screen import FAILED, INTERRUPTED, Screen

PROMPT = "> "
BLOCK = '"""'


class Chat:
    """One conversation with one server."""

    def __init__(self, client: Client, model: str, conversation: Conversation, options: Mapping[str, Any]) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._options = options
        self._screen = Screen()
        self._typed = sys.stdin.isatty()

    def run(self) -> int:
        """Until the input ends; the exit status. Typed at a terminal, an error does not end it."""
        if self._typed:
            with contextlib.suppress(ImportError):  # it makes a line editable, and what was typed before come back
                import readline  # noqa: F401
            self._screen.note(f"{self._model} at {self._client.url} (/help, Ctrl-D ends)")
        status: int | None = None
        while status is None:
            try:
                status = self._turn()
            except KeyboardInterrupt:  # wherever it comes, but for an answer, which hears it itself
                if not self._typed:
                    return INTERRUPTED
                self._screen.new_line()
                self._screen.note("Ctrl-D or /exit ends")
        return status

    def _turn(self) -> int | None:
        """One message and what follows from it; the exit status if it was the last."""
        try:
            text = self._read()
        except EOFError:
            if self._typed:
                self._screen.new_line()
            return 0
        follows, notice = self._conversation.take(text)
        if notice:
            self._screen.note(notice)
        if follows is Next.END:
            return 0
        status = self.answer() if follows is Next.ANSWER else 0
        return status if status and not self._typed else None

    def ask(self, text: str) -> int:
        """One message and its answer; the exit status."""
        follows, _ = self._conversation.take(f"/{text}" if text.startswith("/") else text)
        return self.answer() if follows is Next.ANSWER else 0

    def answer(self) -> int:
        """Show the answer to what was said last."""
        said: list[str] = []
        pieces = self._client.answer(self._model, self._conversation.messages(), self._options)
        status = self._screen.answer(self._client, pieces, said)
        if status == FAILED:
            self._conversation.forget()
        else:
            self._conversation.heard("".join(said))
        return status

    def _read(self) -> str:
        """The next message: a line, or several between triple quotes. EOFError where there is no more."""
        line = self._line(PROMPT)
        if not line.startswith(BLOCK):
            return line
        lines = [line.removeprefix(BLOCK)]
        while not lines[-1].endswith(BLOCK):
            lines.append(self._line("  "))
        lines[-1] = lines[-1].removesuffix(BLOCK)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if self._typed:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")
