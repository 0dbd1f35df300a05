"""The forms of answers beside chat and completions, as streams and handlers want them: Anthropic's and Responses'."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from ..anthropic import answers as anthropic
from ..anthropic.answers import CONTEXT_ENDED
from ..anthropic.edits import Edits
from ..anthropic.events import MessageEvents
from ..errors import ApiError
from ..generation.choice import Choice, make_state
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..openai.responses import answers as responses
from ..openai.responses.events import ResponseEvents
from .answer import Answer, counts, usage
from .writer import AnswerFormat

FIRST_EVENTS = 2  # of a response, before all output


class MakeAnswerFormat(Protocol):
    """Makes the form of one answer."""

    def __call__(self, answer: Answer, job: Job, progress: StreamProgress | None, /) -> AnswerFormat: ...


def key_of_answer(answer: Answer) -> str:
    """What ids derive from: the same, whoever writes them."""
    return f"{answer.seed:016x}{answer.created:08x}"


class MessagesFormat(AnswerFormat):
    """POST /v1/messages."""

    def __init__(self, answer: Answer, job: Job, omit_thinking: bool, most: int, edits: Edits | None) -> None:
        """`most`: tokens; where the model's length leaves fewer, the answer ends there, and says so."""
        self.answer = anthropic.MessageAnswer(key_of_answer(answer), answer.model, omit_thinking, edits)
        self._job = job
        self._most = most

    @cached_property
    def _events(self) -> MessageEvents:
        """The first of them tells the prompt's tokens, which are known when there is something to write."""
        return MessageEvents(self.answer, counts(self._job.prompt_tokens, 0, self._job.cached_tokens, 0))

    def whole(self) -> dict[str, Any]:
        (choice,) = self._job.choices
        pieces = choice.take().pieces
        return self.answer.whole(pieces, self._reason(choice), choice.stop_reason, usage(self._job))

    def _reason(self, choice: Choice) -> str:
        short = choice.finish_reason == "length" and choice.tokens < self._most
        return CONTEXT_ENDED if short else choice.finish_reason or ""

    def first(self, choice: Choice) -> bytes:
        return self._events.first()

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        self._events.skip(news.skipped)
        if news.ended:
            return self._events.last(news.pieces, self._reason(choice), choice.stop_reason, usage(self._job))
        return self._events.pieces(news.pieces)

    def failed(self, error: ApiError) -> bytes:
        return self._events.error(error)


class ResponsesFormat(AnswerFormat):
    """POST /v1/responses. Where a choice's state counts tokens, a response's counts events."""

    def __init__(
        self,
        answer: responses.ResponseAnswer,
        job: Job,
        after: int = -1,
        at_end: Callable[[dict[str, Any]], object] | None = None,
        nothing: bool = False,
        as_whole: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        """`after`: the number of the last event that the client has; `at_end` is given the whole response object
        before the client has its end. `nothing`: what was generated is not for the client. `as_whole`: what is
        answered with that object where there is no stream.
        """
        self.answer = answer
        self._job = job
        self._after, self._nothing, self._as_whole = after, nothing, as_whole
        self._events = ResponseEvents(answer)
        self._begun = False
        for choice in job.choices:
            choice.counts_tokens = False
        self._at_end = at_end

    def whole(self) -> dict[str, Any]:
        (choice,) = self._job.choices
        if self.answer.raw is not None:
            self.answer.raw.add(choice)
        told, pieces = choice.logprobs, choice.take().pieces
        body = self.answer.whole(pieces, choice.finish_reason or "", usage(self._job), int(time.time()), told)
        if self._at_end is not None:
            self._at_end(body)
        return self._as_whole(body)

    def failed_body(self, error: ApiError) -> dict[str, Any]:
        """The response object of one that failed."""
        (choice,) = self._job.choices
        told, pieces = choice.logprobs, choice.take().pieces
        output = self.answer.output(pieces, told)
        return self.answer.failed(output, error.message, error.status)

    def first(self, choice: Choice) -> bytes:
        self._begun = True
        return self._behind(self._events.first())

    def update(self, choice: Choice) -> bytes:
        self._events.add_tokens(choice.logprobs)  # also what is skipped: the state counts no tokens here
        if self.answer.raw is not None:
            self.answer.raw.add(choice)
        news = choice.take()
        if not self._begun:  # a predecessor has
            self._begun = True
            self._events.sequence = choice.skip_tokens or FIRST_EVENTS
        pieces, skipped = ([], []) if self._nothing else (news.pieces, news.skipped)
        self._events.skip(skipped)
        if not news.ended:
            return self._behind(self._events.pieces(pieces))
        reason = "stop" if self._nothing else choice.finish_reason or ""
        events = self._events.last(pieces, reason, usage(self._job, self._nothing), int(time.time()))
        if self._at_end is not None and self._events.ended is not None:
            self._at_end(self._events.ended)
        return self._behind(events)

    def _behind(self, events: bytes) -> bytes:
        """Those that the client has not: each is two lines and an empty one."""
        first = self._events.sequence - events.count(b"\n\n")
        if first > self._after:
            return events
        return b"".join(event + b"\n\n" for event in events.split(b"\n\n")[self._after + 1 - first : -1])

    def state(self, choice: Choice) -> int:
        return make_state(choice.state & 0xFFFFFFFF, self._events.sequence)

    def failed(self, error: ApiError) -> bytes:
        return self._events.error(error)
