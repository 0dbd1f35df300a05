"""The JSON of answers: whole ones, and the envelopes of streamed ones, made once so that only deltas are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from .jobs import Choice, Job

encode = msgspec.json.Encoder().encode


@dataclass
class Answer:
    """What all parts of one answer have in common."""

    model: str
    chat: bool
    seed: int  # 64 bits, of which the id is made
    created: int  # Unix seconds

    @property
    def id(self) -> str:
        return f"{'chatcmpl-' if self.chat else 'cmpl-'}{self.seed:016x}{self.created:08x}"

    def head(self, streamed: bool) -> dict[str, Any]:
        """The fields that stand before the choices."""
        kind = ("chat.completion.chunk" if streamed else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, job: Job) -> dict[str, Any]:
        """The answer that is not streamed."""
        return {
            **self.head(False),
            "choices": [self._whole_choice(choice) for choice in job.choices],
            "usage": usage(job),
            "system_fingerprint": None,
        }

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = choice.take()
        body: dict[str, Any] = {"index": choice.index}
        if self.chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            body["text"] = text
        ends = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return body | ends


def usage(job: Job) -> dict[str, Any]:
    """Token counts of a whole request."""
    return _usage(job.prompt_tokens, job.completion_tokens, job.cached_tokens)


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class Envelopes:
    """The bytes around the deltas of one stream: `data: {…"choices":[{"index":i,…:` delta `…}]…}`."""

    def __init__(self, answer: Answer, job: Job, include_usage: bool, continuous: bool) -> None:
        self.answer = answer
        self.job = job
        self.include_usage = include_usage
        self.continuous = continuous
        self._head = b"data: " + encode(answer.head(True))[:-1] + b',"choices":[{"index":'
        self._before = b',"delta":{"content":' if answer.chat else b',"text":'
        self._after = (b"}" if answer.chat else b"") + b',"logprobs":null,"finish_reason":null}]'
        self._end = b',"usage":null}\n\n' if include_usage and not continuous else b"}\n\n"

    def first(self, choice: Choice) -> bytes:
        """A chat choice begins with its role; a completion with nothing."""
        if not self.answer.chat:
            return b""
        delta = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return b"%s%d%s%s" % (self._head, choice.index, delta, self._tail(choice))

    def text(self, choice: Choice, text: str) -> bytes:
        """One event of text."""
        return b"%s%d%s%s%s%s" % (self._head, choice.index, self._before, encode(text), self._after, self._tail(choice))

    def last(self, choice: Choice, text: str) -> bytes:
        """The choice's end: a chat's stands in an event of its own, a completion's with its last text."""
        ends = encode({"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason})[1:]
        if self.answer.chat:
            event = b'%s%d,"delta":{},%s]%s' % (self._head, choice.index, ends, self._tail(choice))
            return self.text(choice, text) + event if text else event
        return b'%s%d,"text":%s,%s]%s' % (self._head, choice.index, encode(text), ends, self._tail(choice))

    def closing(self) -> bytes:
        """After all choices: the usage event, if it was asked for, and the end mark."""
        event = b""
        if self.include_usage:
            event = b"data: " + encode({**self.answer.head(True), "choices": [], "usage": usage(self.job)}) + b"\n\n"
        return event + b"data: [DONE]\n\n"

    def _tail(self, choice: Choice) -> bytes:
        if not self.continuous:
            return self._end
        counts = _usage(choice.prompt_tokens, choice.tokens, choice.cached_tokens)
        return b',"usage":' + encode(counts) + b"}\n\n"
