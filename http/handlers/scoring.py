"""/generative_scoring: how likely a model that generates goes on with one token of some, behind each of many texts."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from actorserve.actors.protocol.topics.prompts import TextPrompt

from ..errors import ApiError, bad_request
from ..generation.choice import Choice
from ..generation.fields.unsupported import read
from ..generation.job import Job
from ..generation.prepare import MAX_SEQUENCES, ask_completion
from ..middleware.context import BODY, CLIENT, NOTED, RequestContext, name_request
from ..openai.schemas import CompletionRequest, GenerativeScoringRequest
from ..output.answer import Answer, usage
from ..pooling.prepare import check_generates
from ..sglang.requests import joined_prompts, scoring_of
from ..sglang.schemas import SglangScoringRequest
from ..transport.json_response import json_response
from .answering import model_for, release_behind
from .generate import Generator

Handler = Callable[[web.Request], Awaitable[web.Response]]
AT_ONCE = 16  # texts that renderers make tokens of
NAMES = {"prompt": "items", "logprob_token_ids": "label_token_ids"}


class ScoringApi:
    """Its handler."""

    def __init__(
        self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]], of_pairs: Handler
    ) -> None:
        """`of_pairs` answers /v1/score where the scores are those of pairs of texts."""
        self._generator, self._read_body, self._of_pairs = generator, read_body, of_pairs

    async def score(self, request: web.Request) -> web.Response:
        """POST /generative_scoring. A score is that of the first label."""
        raw = await self._read_body(request)
        check_generates(self._generator.settings)
        body = read(GenerativeScoringRequest, raw)
        model = await self._checked(request, body)
        try:
            job, created = await self._scored(request, body, model, await self._prompts(body))
        except ApiError as error:
            raise _renamed(error) from None
        data = [{"index": one.index, "object": "score", "score": _chances(one, body)[0]} for one in job.choices]
        head = {"id": request[NOTED].answer_id, "object": "list", "created": created, "model": model}
        return json_response({**head, "data": data, "usage": usage(job)})

    async def either(self, request: web.Request) -> web.Response:
        """POST /v1/score: of a model that generates as SGLang has it, with a score for each label."""
        raw = request[BODY] = await self._read_body(request)
        if not self._generator.settings.generates or b'"label_token_ids"' not in raw:
            return await self._of_pairs(request)
        body = scoring_of(read(SglangScoringRequest, raw))
        model = await self._checked(request, body)
        try:
            job, _ = await self._scored(request, body, model, joined_prompts(body))
        except ApiError as error:
            raise _renamed(error) from None
        scores = [_chances(one, body) for one in job.choices]
        return json_response({"scores": scores, "model": model, "usage": usage(job), "object": "scoring"})

    async def _checked(self, request: web.Request, body: GenerativeScoringRequest) -> str:
        """The name of its model, whose adapter is there."""
        _check(body)
        model = model_for(request, body.model, self._generator.settings)
        await self._generator.engine.want_adapter(body.model)
        return model

    async def _scored(
        self, request: web.Request, body: GenerativeScoringRequest, model: str, prompts: list[str | int | list[int]]
    ) -> tuple[Job, int]:
        """(the job that has ended, when it was begun); an error names fields of completions."""
        completion = CompletionRequest(
            prompt=prompts,
            model=body.model,
            max_tokens=1,
            temperature=0,
            ignore_eos=True,
            logprobs=0,
            logprob_token_ids=body.label_token_ids,
            cache_salt=body.cache_salt,
            priority=body.priority,
        )
        request_id = name_request(request, body.request_id)
        asked = ask_completion(completion, self._generator.settings, request_id, request[CLIENT])
        job = asked.new_job()
        answer = Answer(model, False, secrets.randbits(64), int(time.time()))
        request[NOTED] = RequestContext(name_request(request, None), model, job, f"generative-scoring-{answer.id[5:]}")
        submit = partial(self._generator.submit, request, job, answer, None, False)
        await self._generator.begin(request, job, submit)
        try:
            await asyncio.shield(job.done)
        finally:
            release_behind(self._generator.engine, job)
        return job, answer.created

    async def _prompts(self, body: GenerativeScoringRequest) -> list[str | int | list[int]]:
        """The tokens of each item with those of the query."""
        (query,) = await self._tokens([body.query], body.add_special_tokens is not False)
        items = await self._tokens(body.items, False)
        return [item + query if body.item_first else query + item for item in items]

    async def _tokens(self, given: Sequence[str | list[int]], special: bool) -> list[list[int]]:
        made: list[list[int]] = []
        for start in range(0, len(given), AT_ONCE):
            made += await asyncio.gather(*(self._of(one, special) for one in given[start : start + AT_ONCE]))
        return made

    async def _of(self, given: str | list[int], special: bool) -> list[int]:
        if isinstance(given, list):
            return given
        tokens, _ = await self._generator.engine.tokenize(TextPrompt(given, special), False)
        return tokens


def _check(body: GenerativeScoringRequest) -> None:
    if not body.items:
        raise bad_request("items must not be empty.", "items")
    if len(body.items) > MAX_SEQUENCES:
        raise bad_request(f"items: at most {MAX_SEQUENCES} are taken in one request.", "items")
    if not body.query:
        raise bad_request("query must not be empty.", "query")
    if len(set(body.label_token_ids)) < len(body.label_token_ids):
        raise bad_request("label_token_ids must not name a token twice.", "label_token_ids")


def _renamed(error: ApiError) -> ApiError:
    """With the names that this API has for fields of completions."""
    field = (error.param or "").partition("[")[0]
    if error.param is None or field not in NAMES:
        return error
    own = NAMES[field]
    return ApiError(error.status, error.message.replace(field, own), error.param.replace(field, own, 1), error.code)


def _chances(choice: Choice, body: GenerativeScoringRequest) -> list[float]:
    """Of each label, among the labels or among all tokens."""
    if not choice.logprobs:
        raise ApiError(500, "The logprobs of this request are lost.")
    found: dict[int, Any] = {token: logprob for _, token, logprob in choice.logprobs[0].best}
    logprobs = [found[token] for token in body.label_token_ids]
    if body.apply_softmax is False:
        return [math.exp(one) for one in logprobs]
    largest = max(logprobs)
    whole = sum(math.exp(one - largest) for one in logprobs)
    return [math.exp(one - largest) / whole for one in logprobs]
