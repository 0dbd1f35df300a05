"""Tokens with their logprobs, for requests that ask for them: the worker's numbers, the tokenizer's bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import RequestTable, slot_of

from ..protocol.messages import TokenLogprobs
from .stream import PIECE


class LogprobReader:
    """Reads what the worker has written."""

    def __init__(self, table: RequestTable, area: Logprobs, token_bytes: Callable[[int], bytes]) -> None:
        self._table = table
        self._area = area
        self._bytes = token_bytes

    def tell(self, ref: int, start: int, stop: int, most: int, listed: Sequence[int] = ()) -> list[TokenLogprobs]:
        """The tokens of these positions, each with `most` others, or with those whose ids the request lists."""
        told = []
        for position, token in enumerate(self._table.token_ids(ref, start, stop).tolist(), start):
            (rank, logprob), *best = self._area.read(slot_of(ref), position, most)
            if listed:
                values = self._area.read_listed(slot_of(ref), position, len(listed))
                best = list(zip(listed, values, strict=True))
            others = [(self._bytes(word), word, value) for word, value in best]
            told.append(TokenLogprobs(self._bytes(token), token, logprob, rank, others))
        return told

    def prompt(self, ref: int, length: int, most: int) -> list[tuple[int, list[TokenLogprobs]]]:
        """(first position, tokens) of the prompt's tokens but the first, which follows nothing."""
        pieces = [(at, min(at + PIECE, length)) for at in range(1, length, PIECE)]
        return [(start, self.tell(ref, start, stop, most)) for start, stop in pieces]
