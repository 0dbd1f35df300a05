"""Which of the model's tokens a message is made of: its text is looked for in theirs, piece by piece.

The engine tells all tokens, with those of thinking, of calls and of markup, which parsers leave out.
"""

from __future__ import annotations

from collections.abc import Iterable

from actorserve.actors.protocol.messages import TokenLogprobs

from ...generation.logprobs import chat_logprobs
from .schemas import Object


class TextTokens:
    """Told tokens, in their order, whose text was not given out yet."""

    def __init__(self) -> None:
        self._waiting: list[TokenLogprobs] = []
        self._rest = b""  # the last token that was taken goes on with this, behind the text that was given out

    def add_tokens(self, tokens: Iterable[TokenLogprobs]) -> None:
        """The next ones. A text's tokens come before it, or with it."""
        self._waiting += tokens

    def take(self, text: str) -> list[TokenLogprobs]:
        """Those of the next text, which stands behind all before it; a token over two texts is the first one's."""
        if not self._waiting:
            return []
        sought = text.encode(errors="replace")
        data = self._rest + b"".join(one.text for one in self._waiting)
        begin = data.find(sought)
        if begin < 0:  # half a character was replaced, or a parser has written it anew
            return []
        return self._between(begin, begin + len(sought), data)

    def _between(self, begin: int, end: int, data: bytes) -> list[TokenLogprobs]:
        at, taken, passed = len(self._rest), [], 0
        for one in self._waiting:
            if at >= end:
                break
            if at + len(one.text) > begin:
                taken.append(one)
            at += len(one.text)
            passed += 1
        self._waiting, self._rest = self._waiting[passed:], data[end : max(at, end)]
        return taken


def logprobs_of(tokens: Iterable[TokenLogprobs]) -> list[Object]:
    """As they stand beside a message's text."""
    content: list[Object] = chat_logprobs(tokens, False)["content"]
    return content
