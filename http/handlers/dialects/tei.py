"""The handlers of Text Embeddings Inference's API: vectors, labels, and tokens of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import EMBED, TOKEN_EMBED
from actorserve.actors.protocol.topics.prompts import TextPrompt

from ...errors import ApiError, bad_request
from ...generation.adapter import with_names
from ...generation.fields.unsupported import read
from ...generation.job import Job
from ...generation.prompts import check_tokens
from ...middleware.context import BODY, ERRORS
from ...openapi.tgi import TgiError
from ...pooling.answers import as_json
from ...pooling.prepare import pooling_of, prompt_named
from ...pooling.schemas import EmbeddingRequest
from ...tei.answers import predictions, similarities, tokens
from ...tei.requests import (
    check_applied,
    compared_of,
    embedding_of,
    ids_of,
    is_compared,
    is_pipeline,
    is_tei,
    labels_of,
    renamed,
    rows_of,
    sequences_of,
)
from ...tei.schemas import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from ...transport.json_response import json_response
from ..answering import model_for
from ..generate import Generator
from ..pooling import PoolingApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ReadBody = Callable[[web.Request], Awaitable[bytes]]


class TeiApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        generator: Generator,
        pooling: PoolingApi,
        read_body: ReadBody,
        read_conversation: ReadBody,
        tokenize: Handler,
    ) -> None:
        """`tokenize` answers /tokenize for bodies of other APIs, which `read_conversation` reads."""
        self._generator, self._pooling, self._settings = generator, pooling, generator.settings
        self._engine = generator.engine
        self._read_body, self._read_conversation, self._tokenize = read_body, read_conversation, tokenize

    async def _read(self, request: web.Request) -> tuple[bytes, PoolingSpec]:
        """Its body, which is read before anything is refused: it would be left on the connection."""
        raw = await self._read_body(request)
        return raw, pooling_of(self._settings)

    async def root(self, request: web.Request) -> web.StreamResponse:
        """POST / of a model that pools: what it is for, or what is compared."""
        request[BODY] = raw = await self._read_body(request)
        if is_compared(raw):
            return await self.similarity(request)
        return await (self.predict if pooling_of(self._settings).head else self.embed)(request)

    async def embed(self, request: web.Request) -> web.Response:
        """POST /embed."""
        raw, _ = await self._read(request)
        job = await self._vectors(request, embedding_of(read(TeiEmbedRequest, raw)))
        return json_response(await as_json(job))

    async def embed_all(self, request: web.Request) -> web.Response:
        """POST /embed_all."""
        raw, _ = await self._read(request)
        job = await self._vectors(request, rows_of(read(TeiEmbedAllRequest, raw)), TOKEN_EMBED)
        return json_response(await as_json(job, by_token=True))

    async def embed_sparse(self, request: web.Request) -> web.Response:
        """POST /embed_sparse."""
        await self._read_body(request)
        text = "/embed_sparse is not supported: no model here makes sparse vectors. /embed makes dense ones."
        raise ApiError(400, text, code="not_supported")

    async def similarity(self, request: web.Request) -> web.Response:
        """POST /similarity."""
        raw, _ = await self._read(request)
        return json_response(similarities(await self._vectors(request, compared_of(read(TeiSimilarityRequest, raw)))))

    async def predict(self, request: web.Request) -> web.Response:
        """POST /predict."""
        raw, spec = await self._read(request)
        body = read(TeiPredictRequest, raw)
        check_applied(body, spec)
        asked = labels_of(body)
        prompts, many = sequences_of(body, prompt_named(asked, spec))
        try:
            _, job = await self._pooling.labels(request, asked, prompts, "inputs")
        except ApiError as error:
            raise renamed(error) from None
        most = body.parameters.top_k if body.parameters is not None else None
        made = [predictions(choice, spec, most) for choice in job.choices]
        return json_response(made if many or is_pipeline(raw) else made[0])

    async def _vectors(self, request: web.Request, asked: EmbeddingRequest, task: str = EMBED) -> Job:
        try:
            return (await self._pooling.vectors(request, asked, task))[1]
        except ApiError as error:
            raise renamed(error) from None

    # --- tokens --------------------------------------------------------------------------------------------------

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """POST /tokenize: a list of tokens for each text."""
        request[BODY] = raw = await self._read_conversation(request)
        if not is_tei(raw):
            return await self._tokenize(request)
        await self._read_body(request)  # which has a limit of its own
        request[ERRORS] = TgiError
        body = read(TeiTokenizeRequest, raw)
        model_for(request, body.model, self._settings)
        before, special = self._before(body), set(self._settings.special_tokens().values())
        told = []
        for text in [body.inputs] if isinstance(body.inputs, str) else body.inputs:
            prompt = TextPrompt(before + text, body.add_special_tokens is not False)
            ids, strings = await self._engine.tokenize(prompt, True)
            told.append(tokens(ids, strings or [], special))
        return json_response(told)

    def _before(self, body: TeiTokenizeRequest) -> str:
        """The prompt that stands before each text, where one is named."""
        if body.prompt_name is None:
            return ""
        if self._settings.pooling is None:
            raise bad_request("prompt_name: prompts are of models that pool.", "prompt_name")
        return prompt_named(EmbeddingRequest(prompt_name=body.prompt_name), self._settings.pooling)

    async def decode(self, request: web.Request) -> web.Response:
        """POST /decode: the text of each list of ids."""
        body = read(TeiDecodeRequest, await self._read_body(request))
        model_for(request, body.model, self._settings)
        skips = body.skip_special_tokens is not False
        rows_ = [check_tokens(ids, "ids") for ids in ids_of(body)]
        try:
            return json_response([await self._engine.detokenize(ids, skips) if ids else "" for ids in rows_])
        except ApiError as error:
            raise with_names(error, {"tokens": "ids"}) from None
