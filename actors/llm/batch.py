"""Prompts that were given together, and what has come of each."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.prompt_embeds import check_beside_embeds
from actorserve.http.generation.job import Job
from actorserve.http.generation.prepare import PreparedRequest, ask_completion
from actorserve.http.generation.times import JobTimes
from actorserve.http.settings import Settings

from ..frontend.media import taken_out
from ..protocol.topics.prompts import EmbedsPrompt, Prompt
from .inputs.prompts import GivenPrompt
from .outputs import Logprobs, PromptError, RequestOutput, completions, prompt_logprobs, stats_of
from .pooling import PooledPrompt
from .sampling_params import SamplingParams

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class PromptRequest:
    """One prompt with its parameters."""

    request_id: str
    given: GivenPrompt
    params: SamplingParams
    asked: PreparedRequest

    @property
    def sequences(self) -> int:
        """How many answers are made for it."""
        return len(self.asked.params)

    def new_job(self) -> Job:
        """To be made in the event loop."""
        return Job([self.given.prompt], self.asked.params, self.asked.rendering, wants_ids=True)

    def output(
        self, job: Job, decode: Decode, made: dict[int, Logprobs] | None = None, times: JobTimes | None = None
    ) -> RequestOutput:
        """What has come of it. `made`: see outputs.completions; `times`: of one that has ended."""
        params, first = self.params, job.choices[0]
        return RequestOutput(
            request_id=self.request_id,
            prompt=decode(first.prompt_ids) if self.given.is_chat else self.given.text,
            prompt_token_ids=first.prompt_ids,
            prompt_logprobs=None if params.prompt_logprobs is None else prompt_logprobs(first, params.detokenize),
            outputs=completions(job, params.n, _ranked(params), params.detokenize, made),
            num_cached_tokens=first.cached_tokens,
            metrics=None if times is None else stats_of(times, job.completion_tokens),
        )


def _ranked(params: SamplingParams) -> bool | None:
    """Whether its logprobs tell of the likeliest tokens; None: it wants none."""
    return False if params.logprob_token_ids else None if params.logprobs is None else True


def make_request(
    request_id: str,
    given: GivenPrompt,
    params: SamplingParams,
    priority: int,
    settings: Settings,
    most_bytes: int,
    adapter: str | None,
    stream: bool,
) -> PromptRequest:
    """Checked as far as that goes without rendering it; ApiError says what cannot be."""
    request = params.to_request(priority)
    request.model, request.stream = adapter, stream and params.prompt_logprobs is None  # which come with the first
    request.prompt, request.cache_salt = given.like, given.cache_salt
    if given.cut is not None:
        request.truncate_prompt_tokens, request.truncation_side = given.cut
    if isinstance(given.prompt, EmbedsPrompt):
        if not settings.prompt_embeds:
            raise ApiError(400, "prompt_embeds: embeddings are taken with enable_prompt_embeds=True.", "prompt_embeds")
        check_beside_embeds(request)
    asked = ask_completion(request, settings, request_id)
    rendering = dict(asked.rendering)
    if params.max_tokens is not None:
        rendering["cap"] = max(1, params.max_tokens)
    if params.max_tokens is None or request.truncate_prompt_tokens != -1:  # which leaves room for all of them
        rendering["max_tokens"] = None  # as many as the prompt leaves room for, up to the cap
    _check_size(given.prompt, rendering, most_bytes)
    return PromptRequest(
        request_id, given, params, PreparedRequest([given.prompt], asked.params, rendering, asked.wants)
    )


def _check_size(prompt: Prompt, rendering: dict[str, Any], most_bytes: int) -> None:
    size = len(msgspec.msgpack.encode([taken_out(prompt)[0], rendering]))
    if size > most_bytes:
        raise ApiError(400, f"The prompt and its parameters have {size:,} bytes; at most {most_bytes:,} are taken.")


@dataclass
class PromptBatch:
    """`ended`: the indices of prompts that have ended, in the order of that; `news` gets something after each of them,
    and after `failure`, the error that ended all others.
    """

    wanted: Sequence[PromptRequest | PooledPrompt]
    outputs: list[Any] = field(default_factory=list)  # a RequestOutput or PoolingRequestOutput each, or None
    errors: dict[int, str] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    failure: Exception | None = None
    news: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.wanted)

    def end(self, index: int, outcome: object) -> None:
        """A prompt's output, or as a text why there is none."""
        if isinstance(outcome, str):
            self.errors[index] = outcome
        else:
            self.outputs[index] = outcome
        self.ended.append(index)
        self.news.put(None)

    def results(self) -> list[Any]:
        """The outputs of all; PromptError if some could not be answered."""
        if self.errors:
            raise PromptError(self.errors, self.outputs)
        return [output for output in self.outputs if output is not None]

    def fail(self, error: Exception) -> None:
        """Nothing comes of the others."""
        self.failure = error
        self.news.put(None)
