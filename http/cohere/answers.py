"""Cohere's answers: a message, or the events of a stream, which another process can go on with."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from actorserve.actors.protocol.messages import TokenLogprobs

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..output.answer import DONE, Answer, encode
from ..output.events import Arguments, CallStart, Content, Piece, ReasoningText, Turn
from ..output.writer import EVENTS, NDJSON, AnswerFormat
from ..pooling.answers import bits, matrix, numbers

Object = dict[str, Any]
REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


class CohereMessage(AnswerFormat):
    """A stream has one block open at a time: a content, or a call."""

    def __init__(self, answer: Answer, job: Job, as_lines: bool = False) -> None:
        """`as_lines`: events are lines of JSON, for LiteLLM, which reads nothing else."""
        self._answer, self._job = answer, job
        self.media_type = NDJSON if as_lines else EVENTS
        self._open = ""  # the kind of the block that is: text, thinking or call; empty: none
        self._contents = self._calls = 0  # that have begun
        self._told: list[TokenLogprobs] = []  # that no event has yet

    # --- whole -----------------------------------------------------------------------------------------------------

    def whole(self) -> Object:
        (choice,) = self._job.choices
        news, turn = choice.take(), Turn()
        turn.add(news.pieces)
        content: list[Object] = []
        if turn.reasoning:
            content.append({"type": "thinking", "thinking": turn.reasoning})
        if turn.content or not (turn.calls or content):
            content.append({"type": "text", "text": turn.content})
        message: Object = {"role": "assistant", "content": content}
        if turn.calls:
            message["tool_calls"] = [
                _call(call.id or self._answer.call_id(0, index), call.name, call.arguments)
                for index, call in enumerate(turn.calls)
            ]
        logprobs = {"logprobs": [_logprob(one) for one in news.logprobs]} if self._answer.wants.logprobs else {}
        return {"id": answer_id(self._answer), "message": message, **self._ends(choice), **logprobs}

    def _ends(self, choice: Choice) -> Object:
        reason = choice.finish_reason or ""
        told = REASONS.get(reason, "ERROR")
        if reason == "stop" and isinstance(choice.stop_reason, str):
            told = "STOP_SEQUENCE"
        return {"finish_reason": told, "usage": counted(self._job)}

    # --- streamed --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> bytes:
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return self._event("message-start", id=answer_id(self._answer), delta={"message": message})

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        for _ in self._events(news.skipped, []):
            pass  # the client has them
        self._told += news.logprobs
        events = list(self._events(news.pieces, self._told))
        events += self._left(news.ended)
        if news.ended:
            events += self._close()
            events.append(self._event("message-end", delta=self._ends(choice)))
        return b"".join(events)

    def _events(self, pieces: Iterable[Piece], logprobs: list[TokenLogprobs]) -> Iterator[bytes]:
        for piece in pieces:
            match piece:
                case Content(text=text):
                    yield from self._begin("text")
                    yield self._delta("text", text, logprobs)
                case ReasoningText(text=text):
                    yield from self._begin("thinking")
                    yield self._delta("thinking", text, logprobs)
                case CallStart(name=name, id=own):
                    yield from self._close()
                    call = _call(own or self._answer.call_id(0, self._calls), name, "")
                    self._open, self._calls = "call", self._calls + 1
                    yield self._event("tool-call-start", index=self._calls - 1, delta={"message": {"tool_calls": call}})
                case Arguments(text=text):
                    yield self._delta("call", text, logprobs)

    def _delta(self, kind: str, text: str, told: list[TokenLogprobs]) -> bytes:
        """More of the open block, and with it what is `told` of tokens, which is taken."""
        name, index = "content-delta", self._contents - 1
        message: Object = {"content": {kind: text}}
        if kind == "call":
            name, index = "tool-call-delta", self._calls - 1
            message = {"tool_calls": {"function": {"arguments": text}}}
        beside = {"logprobs": _joined(told)} if told else {}
        told.clear()
        return self._event(name, index=index, delta={"message": message}, **beside)

    def _left(self, ended: bool) -> Iterator[bytes]:
        """Of tokens that brought no text, such as the last: the same events come of it, however the stream was cut."""
        if self._told and ended and not self._open:
            yield from self._begin("text")
        if self._told and self._open:
            yield self._delta(self._open, "", self._told)

    def _begin(self, kind: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._close()
            self._open, self._contents = kind, self._contents + 1
            content = {"type": kind, kind: ""}
            yield self._event("content-start", index=self._contents - 1, delta={"message": {"content": content}})

    def _close(self) -> Iterator[bytes]:
        if self._open:
            is_call, self._open = self._open == "call", ""
            index = (self._calls if is_call else self._contents) - 1
            yield self._event("tool-call-end" if is_call else "content-end", index=index)

    def closing(self) -> bytes:
        return DONE if self.media_type == EVENTS else b""

    def failed(self, error: ApiError) -> bytes:
        return self._event("message-end", delta={"error": error.message, "finish_reason": "ERROR"}) + self.closing()

    def _event(self, kind: str, **fields: object) -> bytes:
        if self.media_type == EVENTS:
            return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode({"type": kind, **fields}))
        ends = {"event": kind, "data": fields} if kind == "message-end" else {}  # LiteLLM reads an end by these
        return encode({"type": kind, **ends, **fields}) + b"\n"


def answer_id(answer: Answer) -> str:
    """A UUID that whoever writes the answer makes alike."""
    return str(UUID(int=answer.seed << 64 | answer.created))


def counted(job: Job) -> Object:
    """The tokens of prompt and answer."""
    counts = {"input_tokens": job.prompt_tokens, "output_tokens": job.completion_tokens}
    return {"billed_units": counts, "tokens": counts, "cached_tokens": job.cached_tokens}


def _call(own_id: str, name: str, arguments: str) -> Object:
    return {"id": own_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _logprob(one: TokenLogprobs) -> Object:
    return {"text": one.text.decode(errors="replace"), "token_ids": [one.id], "logprobs": [one.logprob]}


def _joined(tokens: list[TokenLogprobs]) -> Object:
    """All that came with one text, as one: the first text of an update takes them."""
    text = b"".join(one.text for one in tokens).decode(errors="replace")
    return {"text": text, "token_ids": [one.id for one in tokens], "logprobs": [one.logprob for one in tokens]}


# --- vectors ---------------------------------------------------------------------------------------------------------


def floats(answer: Answer, job: Job, texts: list[str]) -> Object:
    """POST /v1/embed, the older one, where no type is asked for."""
    made = vectors(answer, job, ("float",), texts, "1")
    return made | {"response_type": "embeddings_floats", "embeddings": made["embeddings"]["float"]}


def vectors(answer: Answer, job: Job, types: Iterable[str], texts: list[str], version: str = "2") -> Object:
    """POST /v2/embed."""
    made: Object = {kind: [_vector(choice, kind) for choice in job.choices] for kind in types}
    units = {"input_tokens": job.prompt_tokens, "image_tokens": 0}
    return {
        "id": answer_id(answer),
        "response_type": "embeddings_by_type",
        "embeddings": made,
        "texts": texts,
        "meta": {"api_version": {"version": version}, "billed_units": units},
    }


def _vector(choice: Choice, kind: str) -> list[float] | list[int] | str:
    match kind:
        case "base64":
            return base64.b64encode(matrix(choice)[2]).decode()
        case "binary" | "ubinary":
            return bits(choice, kind).tolist()
    return numbers(choice)
