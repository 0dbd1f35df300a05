"""Writes a run as a stream, or as a whole: all that is to be known is how many of its events a client has."""

from __future__ import annotations

from ....errors import ApiError
from ....generation.choice import Choice, make_state
from ....output.writer import AnswerFormat
from ..schemas import Object
from .run import ToolRun


class ToolRunFormat(AnswerFormat):
    """Writes its stream: a choice's state counts events where others count tokens."""

    def __init__(self, run: ToolRun, given: int) -> None:
        """`given`: events that the client has."""
        self._run, self._given = run, given

    def whole(self) -> Object:
        return self._run.ended

    def update(self, choice: Choice) -> bytes:
        events = self._run.events[self._given :]
        self._given = max(self._given, len(self._run.events))
        return b"".join(events)

    def state(self, choice: Choice) -> int:
        return make_state(0, self._given)

    def failed(self, error: ApiError) -> bytes:
        return self._run.failed(error)
