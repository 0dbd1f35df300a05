"""What is kept of a response of several turns, so that a successor of this frontend goes on where it was.

Everything stands in the frontend's keyed log before the client, or a tool, knows of it. What is old is forgotten there
first: as long as the record with which a response began is there, so are those behind it. A call is noted before it is
asked for: who finds one without an end asks the same life of the tools actor for it again, by the same key, and that
makes it once; where that life is over, or the note too old, nobody can say whether it was made, and it is not again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.topics.tools import Tool

from ....generation.idempotency_keys import KEY_BYTES
from ....generation.job import Engine
from ....output.events import Arguments, CallStart, Content, Piece, ReasoningText

STALE_S = 300.0  # a call that was noted before and has no end is not asked for again
LOST = "What was begun of this response cannot be gone on with; calls of tools may have been made."
T = TypeVar("T", bound=msgspec.Struct)
KINDS: dict[str, type[Content] | type[ReasoningText] | type[CallStart] | type[Arguments]] = {
    kind.__name__: kind for kind in (Content, ReasoningText, CallStart, Arguments)
}


class ListsRecord(msgspec.Struct, frozen=True, array_like=True, tag="mcp-lists"):
    """The tools of each server, with which a response began."""

    digest: bytes  # of the request
    lists: dict[str, list[Tool]]
    told: list[str]  # labels of those that its client is told; the conversation had the others before


class TurnRecord(msgspec.Struct, frozen=True, array_like=True, tag="mcp-turn"):
    """One answer of the model, as it was told."""

    packed: list[tuple[str, list[object]]]
    finish_reason: str
    usage: tuple[int, int, int, int]  # tokens of prompt and answer, cached, of thinking
    compacts: bool = False  # it is a summary of what was said before
    told: bytes = b""  # its tokens with logprobs, where they are wanted; MessagePack, which has all numbers
    counts: list[int] = []  # of tokens that were there with each piece

    @property
    def tokens(self) -> list[TokenLogprobs]:
        return msgspec.msgpack.decode(self.told, type=list[TokenLogprobs]) if self.told else []

    @property
    def pieces(self) -> list[Piece]:
        return [KINDS[name](*fields) for name, fields in self.packed]  # type: ignore[arg-type]

    def steps(self) -> Iterator[tuple[Piece, list[TokenLogprobs]]]:
        """Each piece, and the tokens that came with it: a text that none of them has might be found in later ones."""
        pieces, tokens = self.pieces, self.tokens
        counts = self.counts or [len(tokens)] * len(pieces)  # servers before wrote none
        for piece, begin, end in zip(pieces, [0, *counts], counts, strict=False):
            yield piece, tokens[begin:end]


class CallRecord(msgspec.Struct, frozen=True, array_like=True, tag="mcp-call"):
    """One call: asked for, or with what has come of it."""

    life: int
    at: float  # seconds of CLOCK_MONOTONIC
    done: bool = False
    output: str = ""
    error: str = ""


def packed(pieces: list[Piece]) -> list[tuple[str, list[object]]]:
    return [(type(piece).__name__, list(msgspec.structs.astuple(piece))) for piece in pieces]


class RunRecords:
    """Those of one response."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine, self._key = engine, key

    def name(self, kind: str, number: int = 0) -> bytes:
        """The key of a record."""
        return hashlib.sha256(f"mcp {kind} {number}\0{self._key}".encode()).digest()[:KEY_BYTES]

    def get(self, kind: type[T], number: int = 0) -> T | None:
        data = self._engine.get(self.name(kind.__name__, number))
        return None if not data else msgspec.json.decode(data, type=kind)

    def put(self, record: msgspec.Struct, number: int = 0) -> bool:
        """False if it is too long to be kept. JSON, since numbers in a tool's schema may be of any size."""
        return self._engine.put(self.name(type(record).__name__, number), msgspec.json.encode(record))
