"""The events of a streamed message. A writer can go on where another process' writer stopped: see `skip`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..errors import ApiError
from ..output.events import Piece
from .answers import MessageAnswer, ends, usage_of
from .blocks import AnswerBlock
from .errors import body_of
from .schemas import Object

encode = msgspec.json.Encoder().encode
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageEvents:
    """Pieces in, server-sent events out."""

    def __init__(self, answer: MessageAnswer, usage: Object) -> None:
        """`usage` is what the chat answer's is at the beginning: that of the prompt."""
        self.answer = answer
        self._usage = usage
        self._blocks = answer.blocks()

    def first(self) -> bytes:
        """What stands before all content."""
        return _event("message_start", message=self.answer.message([], self._usage))

    def skip(self, pieces: Iterable[Piece]) -> None:
        """Another writer has written these (and the first event)."""
        for piece in pieces:
            self._blocks.add(piece)

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """More content."""
        return b"".join(event for piece in pieces for event in self._add(piece))

    def last(self, pieces: Iterable[Piece], finish_reason: str, stop_reason: str | int | None, usage: Object) -> bytes:
        """The last of the content, and the end. `usage` is the chat answer's."""
        events = [self.pieces(pieces)]
        if self._blocks.open is not None:
            events += _close(self._blocks.open)
        delta = ends(finish_reason, stop_reason, self._blocks.has_calls) | {"container": None}
        ended = _event("message_delta", delta=delta, usage=usage_of(usage), **self.answer.edited)
        events += (ended, _event("message_stop"))
        return b"".join(events)

    def error(self, error: ApiError) -> bytes:
        """It failed after it had begun."""
        return _line("error", body_of(error))

    def _add(self, piece: Piece) -> Iterator[bytes]:
        before = self._blocks.open
        placed = self._blocks.add(piece)
        if placed is None:
            return
        block, text = placed
        if block is not before:
            if before is not None:
                yield from _close(before)
            yield _event("content_block_start", index=block.index, content_block=block.begun())
        if text:
            yield _delta(block, text)


def _delta(block: AnswerBlock, text: str) -> bytes:
    kind, name = DELTAS.get(block.kind, ("input_json_delta", "partial_json"))
    return _event("content_block_delta", index=block.index, delta={"type": kind, name: text})


def _close(block: AnswerBlock) -> Iterator[bytes]:
    if block.kind == "thinking":
        delta = {"type": "signature_delta", "signature": block.signature}
        yield _event("content_block_delta", index=block.index, delta=delta)
    yield _event("content_block_stop", index=block.index)


def _event(kind: str, **fields: object) -> bytes:
    return _line(kind, {"type": kind, **fields})


def _line(kind: str, body: Object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode(body))
