"""Ollama's answers: one object, or one for each line of a stream, of which the last has the counts and times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.topics.arguments import ObjectText

from ..errors import ApiError
from ..generation.choice import Choice, ChoiceUpdate
from ..generation.job import Job
from ..generation.logprobs import chat_logprobs
from ..generation.times import JobTimes
from ..output.answer import Answer, encode
from ..output.events import Call, Content, ReasoningText, Turn, WholeCalls
from ..output.writer import NDJSON, AnswerFormat
from .errors import body_of

Object = dict[str, Any]
Said = Content | ReasoningText | Call
REASONS = {"tool_calls": "stop"}
NO_TIME = re.compile(r"0+(\.0+)?(ns|us|ms|s|m|h)?")  # a keep_alive


class OllamaRecords(AnswerFormat):
    """Lines of JSON. `chats`: of /api/chat, else of /api/generate.

    Calls come whole: one that has begun waits for its end, which what comes behind it tells. Whoever goes on with the
    stream reads the same text, so that the same calls wait.
    """

    media_type = NDJSON

    def __init__(self, answer: Answer, job: Job, times: Callable[[Job], JobTimes], chats: bool) -> None:
        self._answer, self._job, self._times, self._chats = answer, job, times, chats
        self._calls = WholeCalls()
        self._ids: list[int] = []  # of all of the answer's tokens, where they are wanted

    # --- whole -----------------------------------------------------------------------------------------------------

    def whole(self) -> Object:
        (choice,) = self._job.choices
        news, turn = choice.take(), Turn()
        self._ids = news.ids
        turn.add(news.pieces)
        calls = [self._call(index, call) for index, call in enumerate(turn.calls)]
        return (
            self._head() | self._said(turn.content, turn.reasoning, calls) | self._logprobs(news.logprobs) | self._end()
        )

    # --- streamed --------------------------------------------------------------------------------------------------

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        self._ids += news.passed_ids + news.ids
        for _ in self._calls.feed(news.skipped):
            pass  # the client has it
        records = [self._record(one) for one in self._calls.feed(news.pieces)]
        if news.ended:
            records += [self._record(one) for one in self._calls.finish()]
        if news.logprobs:
            self._tell(records, news)
        if news.ended:
            records.append(self._head() | self._said("") | self._end())
        return b"".join(encode(record) + b"\n" for record in records)

    def _record(self, said: Said) -> Object:
        match said:
            case Content(text=text):
                return self._head() | self._said(text)
            case ReasoningText(text=text):
                return self._head() | self._said("", text)
        return self._head() | self._said("", "", [self._call(self._calls.told - 1, said)])

    def _tell(self, records: list[Object], news: ChoiceUpdate) -> None:
        """Logprobs stand beside the first of the texts that came with them."""
        if not records:
            records.append(self._head() | self._said(""))
        records[0] |= self._logprobs(news.logprobs)

    def failed(self, error: ApiError) -> bytes:
        return encode(body_of(error)) + b"\n"

    # --- parts -----------------------------------------------------------------------------------------------------

    def _head(self) -> Object:
        return {"model": self._answer.model, "created_at": now(), "done": False}

    def _said(self, text: str, thinking: str = "", calls: Iterable[Object] = ()) -> Object:
        thought: Object = {"thinking": thinking} if thinking and self._answer.wants.reasoning else {}
        if not self._chats:
            return {"response": text} | thought
        made = {"tool_calls": list(calls)} if calls else {}
        return {"message": {"role": "assistant", "content": text} | thought | made}

    def _call(self, index: int, call: Call) -> Object:
        """Arguments are an object: of those that were cut, what of them was whole."""
        arguments = ObjectText()
        arguments.feed(call.arguments)
        function = {"index": index, "name": call.name, "arguments": msgspec.Raw(arguments.object())}
        return {"id": call.id or self._answer.call_id(0, index), "function": function}

    def _logprobs(self, told: list[TokenLogprobs]) -> Object:
        if not self._answer.wants.logprobs:
            return {}
        return {"logprobs": chat_logprobs(told, self._answer.wants.as_ids)["content"]}

    def _end(self) -> Object:
        (choice,) = self._job.choices
        reason = choice.finish_reason or ""
        context = {"context": choice.prompt_ids + self._ids} if self._answer.wants.prompt_ids else {}
        ended = {"done": True, "done_reason": REASONS.get(reason, reason)}
        return ended | context | durations(self._times(self._job), self._job)


def durations(times: JobTimes, job: Job) -> Object:
    """Counts, and ns as they were measured: until the prompt was begun, in the prompt, and in the answer."""
    return {
        "total_duration": times.total,
        "load_duration": times.before,
        "prompt_eval_count": job.prompt_tokens,
        "prompt_eval_duration": times.prefill,
        "eval_count": job.completion_tokens,
        "eval_duration": times.decode,
    }


def loaded(model: str, chats: bool, keep_alive: object = None) -> Object:
    """The answer to a request that asks for nothing but the model, or that it may go."""
    kept = "unload" if isinstance(keep_alive, int | float | str) and NO_TIME.fullmatch(str(keep_alive)) else "load"
    said: Object = {"message": {"role": "assistant", "content": ""}} if chats else {"response": ""}
    return {"model": model, "created_at": now(), **said, "done": True, "done_reason": kept}


def now() -> str:
    """The time as Ollama writes it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
