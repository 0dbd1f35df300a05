"""Answers of Cohere's chat, version 1: a text with its history, or events, of which the last has all of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from actorserve.actors.protocol.topics.arguments import ObjectText

from ...errors import ApiError
from ...generation.choice import Choice
from ...generation.job import Job
from ...output.answer import Answer, encode
from ...output.events import Arguments, CallStart, Content, Piece, Turn
from ...output.writer import EVENTS, NDJSON, AnswerFormat
from ..answers import REASONS, answer_id, counted
from .schemas import CoherePast

Object = dict[str, Any]


class CohereAnswerV1(AnswerFormat):
    """Thinking has no place in it."""

    def __init__(self, answer: Answer, job: Job, history: Sequence[CoherePast], as_events: bool) -> None:
        """`as_events`: the stream is one of server-sent events, not of lines."""
        self._answer, self._job, self._history = answer, job, history
        self._turn = Turn()
        self.media_type = EVENTS if as_events else NDJSON

    # --- whole -----------------------------------------------------------------------------------------------------

    def whole(self) -> Object:
        (choice,) = self._job.choices
        self._turn.add(choice.take().pieces)
        return self._response(choice)

    def _response(self, choice: Choice) -> Object:
        own_id, calls = answer_id(self._answer), self._calls()
        said: Object = {"role": "CHATBOT", "message": self._turn.content} | ({"tool_calls": calls} if calls else {})
        past = [_past(turn) for turn in self._history]
        meta = {"api_version": {"version": "1"}, **counted(self._job)}
        return {
            "response_id": own_id,
            "generation_id": own_id,
            "text": self._turn.content,
            "chat_history": [*past, said],
            "finish_reason": self._reason(choice),
            "meta": meta,
            **({"tool_calls": calls} if calls else {}),
        }

    def _calls(self) -> list[Object]:
        """Parameters are an object: of those that were cut, what of them was whole."""
        made = []
        for call in self._turn.calls:
            parameters = ObjectText()
            parameters.feed(call.arguments)
            made.append({"name": call.name, "parameters": msgspec.Raw(parameters.object())})
        return made

    def _reason(self, choice: Choice) -> str:
        """Version 1 has no reason for calls."""
        told = REASONS.get(choice.finish_reason or "", "ERROR")
        if choice.finish_reason == "stop" and isinstance(choice.stop_reason, str):
            return "STOP_SEQUENCE"
        return "COMPLETE" if told == "TOOL_CALL" else told

    # --- streamed --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> bytes:
        return self._event("stream-start", generation_id=answer_id(self._answer))

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        self._turn.add(news.skipped)  # which the client has
        events = list(self._events(news.pieces))
        if news.ended:
            if calls := self._calls():
                events.append(self._event("tool-calls-generation", tool_calls=calls))  # their text was told
            whole = self._response(choice)
            events.append(self._event("stream-end", finish_reason=whole["finish_reason"], response=whole))
        return b"".join(events)

    def _events(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        for piece in pieces:
            self._turn.add([piece])
            match piece:
                case Content(text=text):
                    yield self._event("text-generation", text=text)
                case CallStart(index=index, name=name):
                    yield self._event("tool-calls-chunk", tool_call_delta={"index": index, "name": name})
                case Arguments(index=index, text=text):
                    yield self._event("tool-calls-chunk", tool_call_delta={"index": index, "parameters": text})

    def failed(self, error: ApiError) -> bytes:
        (choice,) = self._job.choices
        whole = self._response(choice) | {"finish_reason": "ERROR"}
        return self._event("stream-end", finish_reason="ERROR", error=error.message, response=whole)

    def _event(self, kind: str, **fields: object) -> bytes:
        event = encode({"is_finished": kind == "stream-end", "event_type": kind, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), event) if self.media_type == EVENTS else event + b"\n"


def _past(turn: CoherePast) -> Object:
    """As it came."""
    said = {} if turn.role == "TOOL" else {"message": turn.message or ""}
    calls = {"tool_calls": turn.tool_calls} if turn.tool_calls else {}
    return {"role": turn.role, **said, **calls, **({"tool_results": turn.tool_results} if turn.tool_results else {})}
