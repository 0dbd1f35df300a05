"""The message object, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..output.events import Piece
from .blocks import Blocks
from .edits import Edits
from .schemas import Object

CONTEXT_ENDED = "context"  # the finish reason of an answer that the model's length has ended before max_tokens
NOT_ENDED: Object = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
BESIDE: Object = {  # in the usage of a whole message: prefixes are kept without being asked, and cost nothing
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "inference_geo": None,
    "server_tool_use": None,
    "service_tier": "standard",
}
STOP_REASONS = {
    "length": "max_tokens",
    CONTEXT_ENDED: "model_context_window_exceeded",
    "content_filter": "refusal",
}


@dataclass(frozen=True)
class MessageAnswer:
    """What the events of one message, or the whole of it, have in common."""

    key: str  # of which all ids are made
    model: str
    omit_thinking: bool = False
    edits: Edits | None = None

    @property
    def id(self) -> str:
        return f"msg_{self.key}"

    def message(self, content: list[Object], usage: Object) -> Object:
        """The message object, of one that goes on. `usage` is the chat answer's."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "container": None,
            **NOT_ENDED,
            "usage": usage_of(usage) | BESIDE,
        }

    def blocks(self, pieces: Iterable[Piece] = ()) -> Blocks:
        """The content that these pieces are."""
        return Blocks(self.key, self.omit_thinking, pieces)

    def whole(
        self, pieces: Iterable[Piece], finish_reason: str, stop_reason: str | int | None, usage: Object
    ) -> Object:
        """The message that answers a request that has ended."""
        blocks = self.blocks(pieces)
        content = [block.object() for block in blocks.blocks]
        return self.message(content, usage) | ends(finish_reason, stop_reason, blocks.has_calls) | self.edited

    @property
    def edited(self) -> Object:
        """What the end of a message says of its context."""
        return {} if self.edits is None else {"context_management": self.edits.said}


def ends(finish_reason: str, stop_reason: str | int | None, has_calls: bool) -> Object:
    """Why it ended, from a chat choice's reasons; nothing says it of one that was ended from outside."""
    sequence = stop_reason if isinstance(stop_reason, str) and finish_reason == "stop" else None
    if finish_reason in ("stop", "tool_calls"):
        otherwise = "tool_use" if has_calls else "end_turn"
        reason = "stop_sequence" if sequence is not None else otherwise
        return NOT_ENDED | {"stop_reason": reason, "stop_sequence": sequence}
    return NOT_ENDED | {"stop_reason": STOP_REASONS.get(finish_reason)}


def usage_of(usage: Object) -> Object:
    """A chat answer's usage under this API's names: `input_tokens` are those that were not cached."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    thinking = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def count(tokens: int, edits: Edits | None = None) -> Object:
    """The answer of count_tokens."""
    if edits is None:
        return {"input_tokens": tokens}
    before = tokens if edits.tokens is None else edits.tokens
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": before}}
