"""Endpoints of models that pool: embeddings, scores, rankings, labels, and all that a model makes by token."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import BY_TOKEN, CLASSIFY, EMBED, NORMALIZE, Pooling
from actorserve.actors.protocol.topics.prompts import Prompt

from ..accounts import check_model_of
from ..cohere.labels import classifications, labelling_of
from ..errors import ApiError, bad_request
from ..generation.adapter import with_names
from ..generation.fields.decoding import check_model
from ..generation.fields.unsupported import read
from ..generation.job import Job
from ..middleware.context import ACCOUNT, CLIENT, NOTED, RequestContext, log_prompts, name_request
from ..output.answer import Answer
from ..pooling import answers
from ..pooling.long_texts import divided, joined
from ..pooling.packed import BYTES, Packed
from ..pooling.pairs import Pair, comparison_of, documents_of, numbered, pair_prompts, pairs, places
from ..pooling.plugin import PLUGIN, check_data, task_beside
from ..pooling.prepare import (
    check_task,
    classification,
    embedding,
    inputs,
    of_task,
    pooling_of,
    score_of,
    work,
)
from ..pooling.schemas import (
    ClassifyRequest,
    EmbeddingRequest,
    InputFields,
    PairFields,
    PoolingFields,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from ..transport.json_response import json_response
from .generate import Generator

T = TypeVar("T", bound=PoolingFields)
FIRST, SECOND = ("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")


class PoolingApi:
    """Its handlers, by the names that routes.py has for them."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._generator, self._settings = generator, generator.settings
        self._read_body = read_body

    async def _read(self, kind: type[T], request: web.Request) -> T:
        """Its body, which is read before anything is refused: it would be left on the connection."""
        raw = await self._read_body(request)
        pooling_of(self._settings)
        return read(kind, raw)

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings."""
        body = await self._read(EmbeddingRequest, request)
        answer, job = await self.vectors(request, body)
        packed = _packed(body)
        if body.encoding_format in BYTES:
            return _bytes(body, *await answers.in_bytes(answer, job, packed, by_token=False))
        return json_response(await answers.embeddings(answer, job, body.encoding_format, body.output_dtype, packed))

    async def vectors(self, request: web.Request, body: EmbeddingRequest, task: str = EMBED) -> tuple[Answer, Job]:
        """A vector of each input, or of each token of it, whatever the API that asks for them."""
        spec = pooling_of(self._settings)
        check_task(spec, task)
        prompts, field = inputs(body, self._settings, spec)
        return await self._made(request, body, prompts, embedding(body, spec, task), field)

    async def _made(
        self, request: web.Request, body: InputFields, prompts: list[Prompt], wanted: Pooling, field: str
    ) -> tuple[Answer, Job]:
        """What is wanted of each prompt, of a long one by its parts with enable_chunked_processing."""
        spec = pooling_of(self._settings)
        if wanted.task != EMBED or not spec.longest_joined or body.truncate_prompt_tokens is not None:
            return await self._answer(request, body, prompts, wanted, field)
        model = check_model(body.model, self._settings.served, any_name=self._settings.any_model_name)
        check_model_of(request.get(ACCOUNT), model)
        work(body, self._settings, prompts, wanted, ("", request[CLIENT], field))
        self._generator.check_limits(request)  # nothing is divided for what is refused
        length, names = self._settings.max_model_len, numbered(field, len(prompts))
        parts = await divided(self._generator.engine, prompts, names, length, spec.longest_joined)
        fields = [name for name, own in zip(names, parts, strict=True) for _ in own]
        answer, job = await self._answer(request, body, [one for own in parts for one in own], wanted, field, fields)
        job.choices = await joined(job.choices, [len(own) for own in parts], wanted.activation == NORMALIZE)
        return answer, job

    async def labels(
        self, request: web.Request, body: ClassifyRequest, prompts: list[Prompt], field: str
    ) -> tuple[Answer, Job]:
        """The scores of a text's labels, or a pair's, whatever the API that asks for them."""
        spec = pooling_of(self._settings)
        check_task(spec, CLASSIFY)
        return await self._answer(request, body, prompts, classification(body, spec), field)

    async def pool(self, request: web.Request) -> web.Response:
        """POST /pooling."""
        body = await self._read(PoolingRequest, request)
        spec = pooling_of(self._settings)
        if bytes(body.data) or body.task == PLUGIN:
            return await self._of_plugin(request, body, spec)
        wanted = of_task(body, spec)
        prompts, field = inputs(body, self._settings, spec)
        answer, job = await self._made(request, body, prompts, wanted, field)
        packed = _packed(body)
        if body.encoding_format in BYTES:
            return _bytes(body, *await answers.in_bytes(answer, job, packed, wanted.task in BY_TOKEN))
        return json_response(await answers.poolings(answer, job, body.encoding_format, wanted.task, packed))

    async def _of_plugin(self, request: web.Request, body: PoolingRequest, spec: PoolingSpec) -> web.Response:
        """Prompts and answer are those of --io-processor-plugin."""
        check_data(body, self._settings)
        request_id, data = name_request(request, body.request_id), bytes(body.data)
        engine, own = self._generator.engine, f"{request_id}-{secrets.token_hex(8)}"
        wanted = of_task(msgspec.structs.replace(body, task=task_beside(body, spec)), spec)
        prompts = await engine.pre_process(own, data)
        answer, job = await self._answer(request, body, prompts, wanted, "data")
        output = await engine.post_process(own, data, answers.for_plugin(job, wanted.task))
        return json_response({"request_id": request_id, "created_at": answer.created, "data": msgspec.Raw(output)})

    async def classify(self, request: web.Request) -> web.Response:
        """POST /classify."""
        body = await self._read(ClassifyRequest, request)
        spec = pooling_of(self._settings)
        check_task(spec, CLASSIFY)
        if body.inputs is not None:
            return await self._classify_as_cohere(request, body, body.inputs, spec)
        answer, job = await self.labels(request, body, *inputs(body, self._settings, spec))
        return json_response(answers.classes(answer, job, spec))

    async def _classify_as_cohere(
        self, request: web.Request, body: ClassifyRequest, texts: list[str], spec: PoolingSpec
    ) -> web.Response:
        body = labelling_of(body, texts)
        try:
            prompts, _ = inputs(body, self._settings, spec)
            answer, job = await self.labels(request, body, prompts, "inputs")
        except ApiError as error:
            raise with_names(error, {"input": "inputs"}) from None
        return json_response(classifications(answer, job, spec, texts))

    async def score(self, request: web.Request) -> web.Response:
        """POST /score."""
        body = await self._read(ScoreRequest, request)
        (one, first), (other, second) = (_given(body, names) for names in (FIRST, SECOND))
        names = one, other
        compared = pairs(first, second, names), places(len(first), len(second), names)
        answer, job, made = await self._scores(request, body, compared, other)
        return json_response(answers.scores(answer, job, made))

    async def rerank(self, request: web.Request) -> web.Response:
        """POST /rerank."""
        body = await self._read(RerankRequest, request)
        field, texts = documents_of(body)
        names = "query", field
        compared = pairs([body.query], texts, names), places(1, len(texts), names)
        answer, job, made = await self._scores(request, body, compared, field)
        if body.texts is not None:
            return json_response(answers.ranking_of_texts(made, texts, body.top_n or 0, body.return_text is True))
        with_texts = body.return_documents is not False
        return json_response(answers.ranking(answer, job, made, texts, body.top_n or 0, with_texts))

    async def _scores(
        self, request: web.Request, body: PairFields, compared: tuple[list[Pair], list[Pair]], field: str
    ) -> tuple[Answer, Job, list[float]]:
        """How near each pair is; of all their texts the fields stand beside them."""
        spec = pooling_of(self._settings)
        wanted, how = score_of(body, spec), comparison_of(body, spec)
        prompts, fields = pair_prompts(*compared, spec, how)
        answer, job = await self._answer(request, body, prompts, wanted, field, fields)
        score = partial(answers.pair_scores, job, compared[0], spec, how.most)
        return answer, job, await asyncio.to_thread(score) if wanted.task in BY_TOKEN else score()

    async def _answer(
        self,
        request: web.Request,
        body: PoolingFields,
        prompts: list[Prompt],
        wanted: Pooling,
        field: str,
        fields: Sequence[str] = (),
    ) -> tuple[Answer, Job]:
        """The job, all of whose prompts are computed. `fields`: that of each, where they are not numbered in one."""
        model = check_model(body.model, self._settings.served, any_name=self._settings.any_model_name)
        request_id = name_request(request, body.request_id)
        asked = work(body, self._settings, prompts, wanted, (request_id, request[CLIENT], field))
        job = Job(asked.prompts, [asked.params], asked.rendering)
        job.fields, job.counted = fields or numbered(field, len(prompts)), field
        answer = Answer(model, False, secrets.randbits(64), int(time.time()))
        noted = request[NOTED] = RequestContext(request_id, model, job)
        log_prompts(noted, self._settings.max_log_len)
        check_model_of(request.get(ACCOUNT), model)
        submit = partial(self._generator.submit, request, job, answer, None, False)
        await self._generator.begin(request, job, submit)
        noted.answer_id = answer.id
        try:
            await asyncio.shield(job.done)
        finally:
            self._generator.engine.release(job)
        return answer, job


def _given(body: ScoreRequest, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """(the field's name, its texts) of the one of these that is there."""
    found = [(name, value) for name in names if (value := getattr(body, name)) is not None]
    if len(found) != 1:
        raise bad_request(f"One of {', '.join(names)} must be given.", names[0])
    name, value = found[0]
    return name, [value] if isinstance(value, str) else value


def _packed(body: EmbeddingRequest) -> Packed:
    return Packed(body.embed_dtype or "float32", body.endianness or "native")


def _bytes(body: EmbeddingRequest, made: bytes, about: dict[str, object]) -> web.Response:
    """As vLLM tells them; with `bytes` a header says which are whose."""
    told = {"metadata": msgspec.json.encode(about).decode()} if body.encoding_format == "bytes" else {}
    return web.Response(body=made, headers=told, content_type="application/octet-stream")
