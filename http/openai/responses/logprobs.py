"""Which of the model's tokens a message is made of: its text is looked for in theirs, piece by piece.

The engine tells all tokens, with those of thinking, of calls and of markup, which parsers leave out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from actorserve.actors.protocol.messages import TokenLogprobs

from ...generation.logprobs import chat_logprobs
from .schemas import Object


class TextTokens:
    """Told tokens, in their order, whose text was not given out yet."""

    def __init__(self) -> None:
        self._waiting: deque[TokenLogprobs] = deque()
        self._text = bytearray()  # what was not given out: first the rest of the last token that was taken
        self._rest = 0  # bytes of that

    def add_tokens(self, tokens: Iterable[TokenLogprobs]) -> None:
        """The next ones. A text's tokens come before it, or with it."""
        for one in tokens:
            self._waiting.append(one)
            self._text += one.text

    def take(self, text: str) -> list[TokenLogprobs]:
        """Those of the next text, which stands behind all before it; a token over two texts is the first one's."""
        if not self._waiting:
            return []
        sought = text.encode(errors="replace")
        begin = self._text.find(sought)
        if begin < 0:  # half a character was replaced, or a parser has written it anew
            return []
        return self._between(begin, begin + len(sought))

    def _between(self, begin: int, end: int) -> list[TokenLogprobs]:
        """Tokens that have some of these bytes; all up to the last one wait no more, at no cost for those behind it."""
        at, taken = self._rest, []
        while self._waiting and at < end:
            one = self._waiting.popleft()
            if at + len(one.text) > begin:
                taken.append(one)
            at += len(one.text)
        del self._text[:end]
        self._rest = at - end
        return taken


def logprobs_of(tokens: Iterable[TokenLogprobs]) -> list[Object]:
    """As they stand beside a message's text."""
    content: list[Object] = chat_logprobs(tokens, False)["content"]
    return content
