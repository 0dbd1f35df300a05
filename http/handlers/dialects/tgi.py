"""The handlers of Text Generation Inference's API: / as huggingface_hub asks it, /generate, which is SGLang's, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

import actorserve

from ...errors import ApiError
from ...generation.fields.ranges import MAX_STOPS
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...generation.prepare import ask_completion
from ...middleware.context import BODY, CLIENT, ERRORS, name_request
from ...openapi.tgi import TgiError
from ...output.answer import Answer
from ...pooling.prepare import check_generates
from ...tei.answers import info as tei_info
from ...tgi.answers import TgiAnswer
from ...tgi.requests import completion_of, is_tgi, parameters_of, renamed
from ...tgi.schemas import TgiRequest
from ...transport.json_response import json_response
from ..answering import seeded
from ..generate import Generator

ReadBody = Callable[[web.Request], Awaitable[bytes]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TgiApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        generator: Generator,
        read_body: ReadBody,
        read_conversation: ReadBody,
        of_sglang: Handler,
        of_tei: Handler,
    ) -> None:
        """`of_sglang` answers /generate for SGLang's bodies, `of_tei` / for a model that pools."""
        self._generator, self._settings = generator, generator.settings
        self._read_body, self._read_conversation = read_body, read_conversation
        self._of_sglang, self._of_tei = of_sglang, of_tei

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate: whole."""
        request[BODY] = raw = await self._read_conversation(request)
        if not is_tgi(raw):
            return await self._of_sglang(request)
        await self._read_body(request)  # which has a limit of its own
        request[ERRORS] = TgiError
        return await self._answer(request, raw, self._body(raw), stream=False)

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        """POST /generate_stream."""
        raw = await self._read_body(request)
        return await self._answer(request, raw, self._body(raw), stream=True)

    async def either(self, request: web.Request) -> web.StreamResponse:
        """POST /: a stream, or the whole answer in a list."""
        if self._settings.pooling is not None:
            return await self._of_tei(request)
        raw = await self._read_body(request)
        body = self._body(raw)
        return await self._answer(request, raw, body, stream=bool(body.stream), listed=True)

    def _body(self, raw: bytes) -> TgiRequest:
        check_generates(self._settings)
        return read(TgiRequest, raw)

    async def _answer(
        self, request: web.Request, raw: bytes, body: TgiRequest, *, stream: bool, listed: bool = False
    ) -> web.StreamResponse:
        try:
            given = seeded(request, completion_of(body, stream))
            await self._generator.want_adapter(request, given.model)
            asked = ask_completion(given, self._settings, name_request(request, None), request[CLIENT])
        except ApiError as error:
            raise renamed(error, body) from None
        if parameters_of(body).max_new_tokens is None:  # more than the model's length is no error then
            asked.rendering.update(max_tokens=None, cap=given.max_tokens)

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> TgiAnswer:
            return TgiAnswer(job, body, self._settings.end_tokens, listed)

        try:
            return await self._generator.answer(request, raw, given, asked, form)
        except ApiError as error:
            raise renamed(error, body) from None

    async def info(self, request: web.Request) -> web.Response:
        """GET /info: what the model is, and how much it takes."""
        name, settings = self._generator.told_model(request), self._settings
        if settings.pooling is not None:
            return json_response(await tei_info(name, settings, settings.pooling))
        return json_response(
            {
                "model_id": name,
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": settings.max_num_seqs,
                "max_best_of": 1,
                "max_stop_sequences": MAX_STOPS,
                "max_input_tokens": settings.max_model_len - 1,
                "max_total_tokens": settings.max_model_len,
                "max_client_batch_size": 1,
                "router": "actorserve",
                "version": actorserve.__version__,
            }
        )
