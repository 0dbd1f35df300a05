"""What comes of a prompt, under the names that vLLM's users know."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from actorserve.http.generation.choice import Choice, likelihood
from actorserve.http.generation.job import Job
from actorserve.http.generation.times import JobTimes

from ..protocol.messages import TokenLogprobs


@dataclass(frozen=True)
class Logprob:
    """A token's logprob, its rank among all tokens (1 is the likeliest), and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


SECOND = 1_000_000_000  # ns
Logprobs = list[dict[int, Logprob]]  # of each token: its own, and those of the likeliest tokens
PromptLogprobs = list[dict[int, Logprob] | None]  # None for the first token, which follows nothing


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. `finish_reason`: stop or length; `stop_reason`: the string or token that ended it, if one did."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: Logprobs | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestStateStats:
    """When what happened to a request: `arrival_time` by the clock on the wall, the others in seconds of a monotonic
    clock, 0 for what never happened. Of several answers the first beginning and the last end.
    """

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0


def stats_of(times: JobTimes, tokens: int) -> RequestStateStats:
    """Of a request that has ended now."""
    return RequestStateStats(
        tokens,
        times.preemptions,
        time.time() - (time.monotonic_ns() - times.arrival) / SECOND,
        times.admitted / SECOND,
        times.scheduled / SECOND,
        times.first_token / SECOND,
        times.last_token / SECOND,
        (times.before + times.prefill) / SECOND,
    )


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt. `prompt`: its text, None where token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    num_cached_tokens: int = 0
    metrics: RequestStateStats | None = None  # of one that has ended


class PromptError(ValueError):
    """Some prompts could not be answered. All others were: `outputs` has them in order, None for those that failed.

    `errors` has the reasons by the prompts' indices; `index` is the first of them.
    """

    def __init__(self, errors: dict[int, str], outputs: list[RequestOutput | None]) -> None:
        self.index = min(errors)
        self.errors = errors
        self.outputs = outputs
        more = f" (and {len(errors) - 1} more prompts failed)" if len(errors) > 1 else ""
        super().__init__(f"prompt {self.index}: {errors[self.index]}{more}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions are made anew of their text, where they come from another process."""
        return type(self), (self.errors, self.outputs)


def aborted(output: Any) -> Any:
    """The same, whose answers that have not ended have been aborted."""
    if not isinstance(output, RequestOutput):
        return output
    answers = [one if one.finished() else replace(one, finish_reason="abort") for one in output.outputs]
    return replace(output, outputs=answers, finished=True)


def completions(
    job: Job, wanted: int, ranked: bool | None, text: bool, made: dict[int, Logprobs] | None = None
) -> list[CompletionOutput]:
    """The answers of a job that has one prompt: the likeliest `wanted` of them where more were made.

    `ranked`: whether logprobs tell of the likeliest tokens, not of such as the request lists; None: there are none.
    `made`: those of earlier calls for this job, by choice, which only grow.
    """
    choices = job.choices
    if len(choices) > wanted:
        choices = sorted(choices, key=likelihood, reverse=True)[:wanted]
    made = {} if made is None else made
    return [_completion(choice, index, ranked, text, made) for index, choice in enumerate(choices)]


def _completion(
    choice: Choice, index: int, ranked: bool | None, text: bool, made: dict[int, Logprobs]
) -> CompletionOutput:
    logprobs, entries = choice.logprobs if ranked is not None else [], made.setdefault(choice.index, [])
    entries += [_entries(one, bool(ranked), text) for one in logprobs[len(entries) :]]
    return CompletionOutput(
        index=index,
        text="".join(choice.text) if text else "",
        token_ids=list(choice.ids),  # which the engine's thread adds to
        cumulative_logprob=None if ranked is None else sum(one.logprob for one in logprobs),
        logprobs=None if ranked is None else list(entries),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
    )


def prompt_logprobs(choice: Choice, text: bool = True) -> PromptLogprobs:
    """Of the job's first choice, which alone has them."""
    told = choice.prompt_logprobs
    positions: Iterable[int] = range(1, choice.prompt_tokens)
    return [None, *(_entries(told[position], True, text) if position in told else None for position in positions)]


def _entries(one: TokenLogprobs, ranked: bool, text: bool) -> dict[int, Logprob]:
    """`ranked`: those beside it are the likeliest ones, in that order; `text`: their texts are wanted."""

    def decoded(piece: bytes) -> str | None:
        return piece.decode(errors="replace") if text else None

    entries = {one.id: Logprob(one.logprob, one.rank, decoded(one.text))}
    for rank, (piece, token, value) in enumerate(one.best, 1):
        entries.setdefault(token, Logprob(value, rank if ranked else None, decoded(piece)))
    return entries
