"""Answers of /inference/v1/generate: token ids in, token ids out, for those who have the tokenizer themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs

from ..errors import bad_request
from ..generation.choice import Choice, ChoiceUpdate
from ..generation.fields.unsupported import INSIDE
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..generation.logprobs import chat_logprobs
from ..output.answer import Answer, EventFormat, encode, usage
from .schemas import GenerateRequest, GenerationFields, TokensRequest

OWN = ("stream", "stream_options", "model", "request_id", "cache_salt", "priority")  # beside the sampling parameters


def completion_of(body: GenerateRequest) -> TokensRequest:
    """The completion request that asks for the same."""
    if not body.token_ids:
        raise bad_request("token_ids must not be empty.", "token_ids")
    given = body.sampling_params
    if given.detokenize is False and given.stop:
        raise bad_request("stop needs the text: it cannot be combined with detokenize: false.", "stop")
    if given.return_prompt_text:
        raise bad_request("return_prompt_text: the prompt is token ids here.", f"{INSIDE}.return_prompt_text")
    if given.return_progress:
        field = f"{INSIDE}.return_progress"
        raise bad_request(f"{field}: /v1/completions and /v1/chat/completions tell how far a prompt has come.", field)
    if given.use_beam_search:
        field = f"{INSIDE}.use_beam_search"
        raise bad_request(f"{field}: /v1/completions and /v1/chat/completions search for beams.", field)
    fields: dict[str, Any] = {name: getattr(given, name) for name in GenerationFields.__struct_fields__}
    fields |= {name: value for name in OWN if (value := getattr(body, name)) is not None}
    logprobs = 0 if given.logprobs is None and given.logprob_token_ids else given.logprobs
    request = TokensRequest(prompt=list(body.token_ids), logprobs=logprobs, **fields)
    return msgspec.structs.replace(request, return_token_ids=True)


class TokensFormat(EventFormat):
    """Tokens by their ids; no text stands beside them."""

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None, request_id: str) -> None:
        super().__init__(answer, job, progress)
        self._request_id = request_id

    def whole(self) -> dict[str, Any]:
        job = self._job
        body: dict[str, Any] = {
            **self._answer.head(False),
            "request_id": self._request_id,
            "choices": [self._choice(choice, choice.take()) for choice in job.choices],
            "usage": usage(job),
            **self._answer.metrics(job),
        }
        if self._answer.wants.prompt_logprobs:
            body["prompt_logprobs"] = self._answer.prompt_logprobs_of(0)
        return body

    def _choice(self, choice: Choice, news: ChoiceUpdate) -> dict[str, Any]:
        logprobs = _with_numbers(news.logprobs) if self._answer.wants.logprobs else None
        reason = choice.finish_reason if news.ended else None
        stop = choice.stop_reason if news.ended else None
        ends = {"finish_reason": reason, "stop_reason": stop}
        return {"index": choice.index, "token_ids": news.ids, "logprobs": logprobs, **ends}

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        if not (news.ids or news.logprobs or news.ended):
            return b""
        named = b',"request_id":' + encode(self._request_id)
        return self._events.event(choice, encode(self._choice(choice, news)), ended=news.ended, beside=named)


def _with_numbers(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """As chat has them, each token also by its id and its own also by its rank, as vLLM tells them."""
    told = chat_logprobs(tokens, as_ids=True, itself=True)
    for entry, one in zip(told["content"], tokens, strict=True):
        entry |= {"token_id": one.id, "rank": one.rank}
        for other, token in zip(entry["top_logprobs"], [token for _, token, _ in one.best] or [one.id], strict=True):
            other["token_id"] = token
    return told
