"""What the answers of chat and completions have in common: their heads, their counts, and how a stream is written."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.fields.kv_transfer import FIELD, handed_on
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..generation.times import JobTimes, PromptProgress
from ..settings import KVSharing
from .timings import all_read, progress_of, timings_of
from .writer import AnswerFormat

encode = msgspec.json.Encoder().encode
SECOND, MS = 1_000_000_000, 1_000_000  # ns
PADDED = 32  # bytes
DONE = b"data: [DONE]\n\n"  # behind a stream's last event
ONLY_TIER = "default"  # OpenAI's name of the usual one


@dataclass(frozen=True)
class AnswerOptions:
    """What the client wants to be told beside the text."""

    usage: bool = False  # an event at the end of a stream
    last_usage: bool = False  # in the event that ends a choice: that of the choice
    continuous_usage: bool = False  # in each event of it
    logprobs: bool = False
    listed: bool = False  # logprobs tell of tokens that the request lists
    as_ids: bool = False  # tokens are named by their ids
    ids: bool = False  # of the answer's tokens; of a completion's prompt, too
    prompt_ids: bool = False  # of a chat's prompt
    each_prompt: bool = False  # likewise, in each choice
    prompt_logprobs: bool = False
    reasoning: bool = True
    echo: list[str] | None = None  # of each prompt what stands before the answers: its text, or a chat's last message
    forced: bool = False  # a function was asked for by its name; OpenAI ends such a call with "stop"
    nothing: bool = False  # max_tokens 0: the one token that was generated is not for the client
    prompt_text: bool = False
    role: str = "assistant"
    metrics: bool = False  # when what happened to it
    timings: bool = False  # likewise, by llama.cpp's names, in each event
    progress: bool = False  # how far prompts have come, in events before the first token
    hands_on: KVSharing | None = None  # another server goes on with it, and finds its blocks
    best_of: int = 0  # of so many choices a prompt, the likeliest are given; 0: all are
    function: bool = False  # a call is told as `function_call`, as it was before there were tools
    padded: bool = False  # an event's length does not tell that of its text
    whole_calls: bool = False  # a call comes in one event
    thinking_parts: bool = False  # thinking is told as a part of the content, which each delta has
    tier: bool = False  # in which it was served
    error_body: Callable[[ApiError], dict[str, Any]] | None = None  # what one within a stream is; None: OpenAI's


@dataclass
class Answer:
    """What all parts of one answer have in common."""

    model: str
    chat: bool
    seed: int  # 64 bits, of which the id is made
    created: int  # Unix seconds
    wants: AnswerOptions = field(default_factory=AnswerOptions)
    name: str = ""  # what the client calls the request, if it does
    fingerprint: str = ""  # of what made it
    times: Callable[[], JobTimes] = JobTimes
    prompt_texts: list[str] = field(default_factory=list)  # of each prompt, where they are wanted
    prompt_logprobs: list[msgspec.Raw] = field(default_factory=list)  # the same, as JSON
    told_fingerprint: str | None = None  # to the client; None: that of what made it

    @property
    def id(self) -> str:
        """The same, whoever writes it."""
        return f"{'chatcmpl-' if self.chat else 'cmpl-'}{self.name or f'{self.seed:016x}{self.created:08x}'}"

    def head(self, streamed: bool) -> dict[str, Any]:
        """The fields that stand before the choices."""
        kind = ("chat.completion.chunk" if streamed else "chat.completion") if self.chat else "text_completion"
        told = self.fingerprint if self.told_fingerprint is None else self.told_fingerprint
        fingerprint = {"system_fingerprint": told} if told else {}
        tier = {"service_tier": ONLY_TIER} if self.wants.tier else {}
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model} | fingerprint | tier

    def echo(self, prompt: int) -> str:
        """What stands before the answers to a prompt."""
        return "" if self.wants.echo is None else self.wants.echo[prompt]

    def prompt_text(self, prompt: int) -> dict[str, Any]:
        """That of a prompt, where it is wanted."""
        return {"prompt_text": self.prompt_texts[prompt]} if self.prompt_texts else {}

    def prompt_logprobs_of(self, prompt: int) -> msgspec.Raw | None:
        """Those of a prompt, where they are wanted."""
        return self.prompt_logprobs[prompt] if self.prompt_logprobs else None

    def metrics(self, job: Job) -> dict[str, Any]:
        """When what happened to it, and how it is gone on with, where that is wanted."""
        told: dict[str, Any] = {"metrics": metrics_of(self.times(), job)} if self.wants.metrics else {}
        if self.wants.timings:
            generated = 0 if self.wants.nothing else job.completion_tokens
            told["timings"] = timings_of(self.times(), job.prompt_tokens, job.cached_tokens, generated)
        return told | ({FIELD: handed_on(self.fingerprint, self.wants.hands_on)} if self.wants.hands_on else {})

    def call_id(self, choice: int, call: int) -> str:
        """The id of a tool call: the same whoever writes it."""
        return f"call_{self.seed:016x}{self.created:08x}{choice:x}_{call:x}"


def metrics_of(times: JobTimes, job: Job) -> dict[str, Any]:
    """As they stand in an answer: in seconds, and in ms by vLLM's names, whose time to the first token is without that
    in the queue.
    """
    tokens, running = job.completion_tokens, times.prefill + times.decode
    each = {"mean_itl_ms": times.decode / MS / (tokens - 1)} if tokens > 1 and len(job.choices) == 1 else {}
    rate = {"tokens_per_second": tokens * SECOND / running} if running else {}
    return {
        "queue_time": times.before / SECOND,
        "time_to_first_token": (times.before + times.prefill) / SECOND,
        "prefill_time": times.prefill / SECOND,
        "decode_time": times.decode / SECOND,
        "total_time": times.total / SECOND,
        "preemptions": times.preemptions,
        "deaths_survived": times.deaths,
        "queue_time_ms": times.before / MS,
        "time_to_first_token_ms": times.prefill / MS,
        "generation_time_ms": times.decode / MS,
        **each,
        **rate,
    }


def padding(length: int) -> str:
    """Random letters that make so many bytes a multiple of PADDED: who sees how long an event is learns no more."""
    return secrets.token_hex(PADDED // 2)[: -length % PADDED or PADDED]


def last_state(choice: Choice) -> dict[str, Any]:
    """The hidden state of the last token that was computed, where it is wanted; empty where that is the prompt's."""
    if choice.hidden_states is None:
        return {}
    return {"hidden_states": array("f", choice.hidden_states[2]).tolist()}


def usage(job: Job, nothing: bool = False) -> dict[str, Any]:
    """Token counts of a whole request. `nothing`: what was generated is not for the client."""
    generated = 0 if nothing else job.completion_tokens
    return counts(job.prompt_tokens, generated, job.cached_tokens, job.reasoning_tokens)


def counts(prompt: int, completion: int, cached: int, reasoning: int) -> dict[str, Any]:
    """`usage`."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


class Events:
    """The bytes around the choices of one stream's events: `data: {…"choices":[` choice `]…}`."""

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None) -> None:
        """With `progress`, events carry ids, by which the stream can be asked for again from there on."""
        wants = answer.wants
        self.answer, self.job, self.progress = answer, job, progress
        self._is_plain = progress is None and not (wants.continuous_usage or wants.padded or wants.timings)
        self._head = b"data: " + encode(answer.head(True))[:-1] + b',"choices":['
        self._end = b',"usage":null}\n\n' if wants.usage and not wants.continuous_usage else b"}\n\n"

    def around(self, before: bytes, after: bytes) -> tuple[bytes, bytes] | None:
        """What stands around the text in events whose choice is `before`, a text and `after`; None if it changes."""
        return (self._head + before, after + b"]" + self._end) if self._is_plain else None

    def event(
        self, choice: Choice, body: bytes, ended: bool = False, first: bool = False, beside: bytes = b""
    ) -> bytes:
        """One event; `body` is the choice as JSON, `beside` stands behind the choices.

        `first`: it says nothing of the choice's text.
        """
        tail = self._end
        if self.answer.wants.continuous_usage or (ended and self.answer.wants.last_usage):
            tail = b',"usage":' + encode(self._counts(choice, first)) + b"}\n\n"
        if self.answer.wants.progress and first:
            beside += b',"prompt_progress":' + encode(all_read(choice, self.answer.times()))
        if self.answer.wants.timings and not first:
            told = timings_of(self.answer.times(), choice.prompt_tokens, choice.cached_tokens, self._generated(choice))
            beside += b',"timings":' + encode(told)
        if self.answer.wants.padded:
            beside += b',"obfuscation":"%s"' % padding(len(body) + len(beside) + len(tail)).encode()
        return b"%s%s%s]%s%s" % (self._id(choice, ended, first), self._head, body, beside, tail)

    def _counts(self, choice: Choice, first: bool) -> dict[str, Any]:
        """With each event there are more, whatever has come when the first was written."""
        generated = 0 if first else self._generated(choice)
        return counts(choice.prompt_tokens, generated, choice.cached_tokens, 0 if first else choice.thought)

    def before_text(self, body: bytes, progress: PromptProgress, ns: int) -> bytes:
        """One event before all text; `body` is a choice that says nothing, as JSON."""
        return b'%s%s],"prompt_progress":%s%s' % (self._head, body, encode(progress_of(progress, ns)), self._end)

    def _generated(self, choice: Choice) -> int:
        """Tokens that are for the client."""
        return 0 if self.answer.wants.nothing else choice.tokens

    def closing(self) -> bytes:
        """The event of usage, metrics and how it is gone on with, as far as they were asked for, and the end mark."""
        event, wants = b"", self.answer.wants
        if wants.usage or wants.metrics or wants.hands_on:
            lead = b""
            if self.progress is not None:
                self.progress.closed = True
                lead = self.progress.event_id()
            counted = {"usage": usage(self.job, wants.nothing)} if wants.usage else {}
            body = encode({**self.answer.head(True), "choices": [], **counted, **self.answer.metrics(self.job)})
            event = b"%sdata: %s\n\n" % (lead, body)
        return event + DONE

    def failed(self, error: ApiError) -> bytes:
        body = self.answer.wants.error_body
        return b"data: " + encode(error.body() if body is None else body(error)) + b"\n\n" + DONE

    def _id(self, choice: Choice, ended: bool, first: bool) -> bytes:
        """The event's id, where events have one: it brings the choice to where it is now."""
        if self.progress is None:
            return b""
        if not first:
            self.progress.reach(choice.index, choice.state, ended)
        return self.progress.event_id()


class EventFormat(AnswerFormat):
    """That of an answer whose stream is of these events."""

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None = None) -> None:
        self._answer, self._job = answer, job
        self._events = Events(answer, job, progress)

    def closing(self) -> bytes:
        return self._events.closing()

    def failed(self, error: ApiError) -> bytes:
        return self._events.failed(error)


class TextFormat(EventFormat):
    """That of texts, most of whose events are a text between the same bytes."""

    before: ClassVar[bytes]  # stands before the text of a choice, with its number
    after: ClassVar[bytes]  # behind the text of one that goes on

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None = None) -> None:
        super().__init__(answer, job, progress)
        self._around = [self._events.around(self.before % choice.index, self.after) for choice in job.choices]

    def progress(self, progress: PromptProgress, ns: int) -> bytes:
        """Implements writer.ProgressWriter."""
        return self._events.before_text(self.before % progress.choice + b'""' + self.after, progress, ns)

    def _text(self, choice: Choice, text: str) -> bytes:
        """The event that is sent most."""
        around = self._around[choice.index]
        if around is not None:
            return b"".join((around[0], encode(text), around[1]))
        return self._events.event(choice, b"%s%s%s" % (self.before % choice.index, encode(text), self.after))
