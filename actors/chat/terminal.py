"""The chat on a terminal, or through pipes: reads messages, shows answers as they come, hears Ctrl-C.

What a model writes is shown, and does nothing: control characters of a terminal are made visible.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from .client import ChatError, Client
from .conversation import Conversation, Next

FAILED = 1
INTERRUPTED = 130
PROMPT = "> "
BLOCK = '"""'
VISIBLE = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
del VISIBLE[ord("\n")], VISIBLE[ord("\t")]
LONGEST = {"length": "cut off: it is as long as it may be", "error": "broken off by an error of the server"}


class Chat:
    """One conversation with one server."""

    def __init__(self, client: Client, model: str, conversation: Conversation, options: Mapping[str, Any]) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._options = options
        self._shown = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
        self._beside = Console(stderr=True, highlight=False, emoji=False, markup=False, soft_wrap=True)
        self._typed = sys.stdin.isatty()

    def run(self) -> int:
        """Until the input ends; the exit status. Typed at a terminal, an error does not end it."""
        if self._typed:
            with contextlib.suppress(ImportError):  # it makes a line editable, and what was typed before come back
                import readline  # noqa: F401
            self._note(f"{self._model} at {self._client.url} (/help, Ctrl-D ends)")
        status: int | None = None
        while status is None:
            try:
                status = self._turn()
            except KeyboardInterrupt:  # wherever it comes, but for an answer, which hears it itself
                if not self._typed:
                    return INTERRUPTED
                self._beside.print()
                self._note("Ctrl-D or /exit ends")
        return status

    def _turn(self) -> int | None:
        """One message and what follows from it; the exit status if it was the last."""
        try:
            text = self._read()
        except EOFError:
            if self._typed:
                self._beside.print()
            return 0
        follows, notice = self._conversation.take(text)
        if notice:
            self._note(notice)
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
        status = 0
        try:
            with contextlib.closing(pieces):
                self._show(pieces, said)
        except KeyboardInterrupt:
            self._end_line(said)
            self._note("interrupted")
            status = INTERRUPTED
        except ChatError as error:
            self._end_line(said)
            self._beside.print(f"actorserve: error: {error}", style="red")
            self._conversation.forget()
            return FAILED
        else:
            self._end_line(said)
            if note := LONGEST.get(self._client.finish_reason):
                self._note(note)
        self._conversation.heard("".join(said))
        return status

    def _show(self, pieces: Iterator[Any], said: list[str]) -> None:
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

    def _note(self, text: str) -> None:
        """What is none of the conversation; it stands on a terminal alone."""
        if self._beside.is_terminal:
            self._beside.print(Text(text, "dim"))

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
