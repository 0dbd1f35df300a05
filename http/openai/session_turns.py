"""The answer of a session's turn: that of a completion, or of /generate, of which the session is told."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..output.writer import AnswerFormat
from .sessions import Continued, Sessions


class TurnFormat(AnswerFormat):
    """Another form's answer, whose turn is kept before the client has its end."""

    def __init__(self, form: AnswerFormat, job: Job, sessions: Sessions, turn: Continued, name: str) -> None:
        self._form, self._job, self._turn, self._name = form, job, turn, name
        self.media_type = form.media_type
        self._sessions = sessions
        self._ids: list[int] = []
        self._stood: frozenset[str] | None = sessions.begun(turn, name)
        job.started.add_done_callback(self._has_started)

    def _has_started(self, started: asyncio.Future[None]) -> None:
        if started.exception() is None:
            self._start()
        else:
            self._sessions.refused(self._turn, self._name)

    def _start(self) -> None:
        """Once: its end may come in the same turn of the loop as its first token."""
        if self._stood is not None:
            self._sessions.started(self._turn, self._name, self._stood)
            self._stood = None

    def whole(self) -> Any:
        self._add(self._job.choices[0])
        return self._form.whole()

    def _add(self, choice: Choice) -> None:
        """Before the choice is taken, what is new of it; a successor is given all of it."""
        self._ids += choice.ids
        self._start()
        if choice.finish_reason is not None:
            self._sessions.keep(self._turn, self._name, choice.prompt_ids, self._ids)

    def first(self, choice: Choice) -> bytes:
        return self._form.first(choice)

    def update(self, choice: Choice) -> bytes:
        self._add(choice)
        return self._form.update(choice)

    def state(self, choice: Choice) -> int:
        return self._form.state(choice)

    def closing(self) -> bytes:
        return self._form.closing()

    def failed(self, error: ApiError) -> bytes:
        return self._form.failed(error)
