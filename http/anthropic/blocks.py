"""What a model said, as the content blocks of a message, in the order in which they came.

All ids derive from the answer's key and the block's place, so that another process that goes on with an answer gives
the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from actorserve.actors.protocol.topics.arguments import ObjectText

from ..output.events import Arguments, CallStart, Content, Piece, ReasoningText
from .schemas import Object

Kind = Literal["text", "thinking", "tool_use"]


@dataclass
class AnswerBlock:
    """One block of the content. Of a call whose arguments were cut, the input is what of them was whole."""

    kind: Kind
    key: str
    index: int  # in the content
    name: str = ""
    call_id: str = ""
    texts: list[str] = field(default_factory=list)  # as they came
    arguments: ObjectText = field(default_factory=ObjectText)

    @property
    def signature(self) -> str:
        """Thinking has one, which says nothing here: it is taken back without."""
        return f"sig_{self.key}{self.index:04x}"

    def begun(self) -> Object:
        """Its JSON object when it begins."""
        match self.kind:
            case "text":
                return {"type": "text", "text": "", "citations": []}  # a list: AI SDK takes no null for one
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": {}}

    def object(self) -> Object:
        """The whole of it. A call's input is JSON text: numbers in it may be of any size."""
        match self.kind:
            case "text":
                return self.begun() | {"text": "".join(self.texts)}
            case "thinking":
                return self.begun() | {"thinking": "".join(self.texts), "signature": self.signature}
        return self.begun() | {"input": msgspec.Raw(self.arguments.object())}

    def add(self, text: str) -> str:
        """More of it; what of this is to be written."""
        if self.kind == "tool_use":
            return self.arguments.feed(text)
        self.texts.append(text)
        return text


class Blocks:
    """Blocks as they grow: the last one is open. Thinking that is not to be shown has its block, and no text."""

    def __init__(self, key: str, omit_thinking: bool = False, pieces: Iterable[Piece] = ()) -> None:
        self.key = key
        self.omit_thinking = omit_thinking
        self.blocks: list[AnswerBlock] = []
        self._calls: list[AnswerBlock] = []
        for piece in pieces:
            self.add(piece)

    @property
    def open(self) -> AnswerBlock | None:
        return self.blocks[-1] if self.blocks else None

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def add(self, piece: Piece) -> tuple[AnswerBlock, str] | None:
        """The block that the piece belongs to, which may be new, and the text to write; None where it says nothing."""
        if isinstance(piece, CallStart):
            return self._call(piece), ""
        if not piece.text:
            return None
        block = self._current(piece)
        if block.kind == "thinking" and self.omit_thinking:
            return block, ""
        return block, block.add(piece.text)

    def _current(self, piece: Content | ReasoningText | Arguments) -> AnswerBlock:
        if isinstance(piece, Arguments):
            if not self._calls or self._calls[-1] is not self.open or len(self._calls) - 1 != piece.index:
                raise ValueError(f"arguments of call {piece.index} after something else had begun")
            return self._calls[-1]
        kind: Kind = "text" if isinstance(piece, Content) else "thinking"
        return self.open if self.open is not None and self.open.kind == kind else self._new(kind)

    def _call(self, piece: CallStart) -> AnswerBlock:
        block = self._new("tool_use")
        block.name = piece.name
        taken = {call.call_id for call in self._calls}
        block.call_id = piece.id if piece.id and piece.id not in taken else f"toolu_{self.key}{block.index:04x}"
        self._calls.append(block)
        return block

    def _new(self, kind: Kind) -> AnswerBlock:
        self.blocks.append(AnswerBlock(kind, self.key, len(self.blocks)))
        return self.blocks[-1]
