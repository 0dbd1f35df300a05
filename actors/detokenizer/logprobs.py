"""Tokens with their logprobs, for requests that ask for them: the worker's numbers, the tokenizer's bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import RequestTable, slot_of

from ..protocol.messages import TokenLogprobs
from .stream import PIECE

MOST_BYTES = 1 << 16  # of one message; those of a token are not divided
HEAD_BYTES = 32  # of a token, its own and those beside it, without its bytes
MOST_TOKEN = 2048  # bytes of one that are told ...
MOST_TEXT = 1 << 18  # ... and of all beside it: of as many as a request may ask for one message has room


class LogprobReader:
    """Reads what the worker has written."""

    def __init__(self, table: RequestTable, area: Logprobs, token_bytes: Callable[[int], bytes]) -> None:
        self._table = table
        self._area = area
        self._token_bytes = token_bytes

    def tell(self, ref: int, start: int, stop: int, most: int, listed: Sequence[int] = ()) -> list[TokenLogprobs]:
        """The tokens of these positions, each with `most` others, or with those whose ids the request lists."""
        told = []
        for position, token in enumerate(self._table.token_ids(ref, start, stop).tolist(), start):
            (rank, logprob), *best = self._area.read(slot_of(ref), position, most)
            if listed:
                values = self._area.read_listed(slot_of(ref), position, len(listed))
                best = list(zip(listed, values, strict=True))
            longest = MOST_TEXT // max(len(best), MOST_TEXT // MOST_TOKEN)
            others = [(self._token_bytes(word)[:longest], word, value) for word, value in best]
            told.append(TokenLogprobs(self._token_bytes(token)[:MOST_TOKEN], token, logprob, rank, others))
        return told

    def prompt(
        self, ref: int, length: int, most: int, listed: Sequence[int] = ()
    ) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        """(first position, tokens) of the prompt's tokens but the first, which follows nothing."""
        for start in range(1, length, PIECE):
            at = start
            for part in in_parts(self.tell(ref, start, min(start + PIECE, length), most, listed)):
                yield at, part
                at += len(part)


def in_parts(told: list[TokenLogprobs]) -> list[list[TokenLogprobs]]:
    """So many as one message takes at a time; at least one part. How long a token is, its tokenizer's maker says, and
    how many stand beside it, a client.
    """
    parts: list[list[TokenLogprobs]] = [[]]
    size = 0
    for one in told:
        own = HEAD_BYTES + len(one.text) + sum(HEAD_BYTES + len(text) for text, _, _ in one.best)
        if parts[-1] and size + own > MOST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += own
    return parts
