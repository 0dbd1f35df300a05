"""What writes an answer, as streams and handlers know it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.times import PromptProgress

EVENTS, NDJSON = "text/event-stream", "application/x-ndjson"  # how a stream is written


class Writer(ABC):
    """Writes one stream's events. Each call's bytes bring the choice to its `state`, or end the stream."""

    media_type = EVENTS  # of the stream

    def first(self, choice: Choice) -> bytes:
        """What stands before all text."""
        return b""

    @abstractmethod
    def update(self, choice: Choice) -> bytes:
        """What is new of the choice; it is taken from it. Nothing, if there is none."""

    def state(self, choice: Choice) -> int:
        """How far the client has the choice, once all that was written is given out."""
        return choice.state

    def closing(self) -> bytes:
        """After the ends of all choices."""
        return b""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that cannot go on."""


class AnswerFormat(Writer):
    """Writes a stream, or makes the whole answer."""

    @abstractmethod
    def whole(self) -> Any:
        """The answer that is not streamed, as JSON has it."""


@runtime_checkable
class ProgressWriter(Protocol):
    """A writer that can say how far a prompt has come, before there is a text."""

    def progress(self, progress: PromptProgress, ns: int) -> bytes:
        """An event, so long behind the prompt's beginning."""


@runtime_checkable
class LongWriter(Protocol):
    """A writer of what may be so long that it is written in turns, once all has come."""

    async def write_long(self) -> None:
        """Before the whole answer tells it."""

    def ends(self) -> AsyncIterator[tuple[Choice, bytes]]:
        """In a stream, before `closing`: an event of each choice, which then is in its `state`."""
