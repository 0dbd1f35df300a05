"""The routes, and what every request passes: keys, sizes, deadlines, errors as JSON. Knows the Engine protocol only."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

import actorserve
from actorserve.actors.messages import Prompt, TextPrompt

from .answers import Answer, Envelopes
from .errors import ApiError, bad_request, json_response
from .jobs import Engine, Job
from .resume import Record, record_of
from .schemas import ChatRequest, CompletionRequest, DetokenizeRequest, GenerationFields, TokenizeRequest
from .streams import EventStream
from .validation import (
    MAX_REQUEST_ID,
    chat_prompt,
    check_built,
    check_fields,
    check_model,
    check_tokens,
    completion_prompts,
    decode,
    max_tokens_of,
    parameters,
)

BODY_S = 60.0  # what a client gets to send its body
MAX_SEQUENCES = 1024  # prompts times choices of one request
OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})  # no key is asked for
REQUEST_ID = web.RequestKey("request_id", str)
log = logging.getLogger("http")


@dataclass(frozen=True)
class Settings:
    """What the app needs to know of options and model."""

    served: list[str]
    api_keys: list[str]
    max_body_bytes: int
    max_model_len: int
    sampling_defaults: dict[str, float]
    created: int  # when the server was started, Unix seconds


def make_app(engine: Engine, settings: Settings) -> web.Application:
    """The application of one frontend."""
    api = Api(engine, settings)
    app = web.Application(middlewares=[_errors_as_json, api.check_key])
    app.on_response_prepare.append(_add_request_id)
    app.add_routes(
        [
            web.post("/v1/chat/completions", api.chat),
            web.post("/v1/completions", api.completions),
            web.get("/v1/models", api.models),
            web.get("/v1/models/{id:.+}", api.model),
            web.post("/tokenize", api.tokenize),
            web.post("/detokenize", api.detokenize),
            web.get("/health", api.health),
            web.get("/ping", api.health),
            web.post("/ping", api.health),
            web.get("/ready", api.ready),
            web.get("/version", api.version),
            web.get("/load", api.load),
            web.get("/metrics", api.metrics),
        ]
    )
    return app


class Api:
    """The handlers."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self._keys = [key.encode() for key in settings.api_keys]

    @property
    def check_key(self) -> Middleware:
        """Middleware: 401 unless one of the keys was sent, as a bearer token or in X-Api-Key."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._keys and request.path not in OPEN_PATHS and not self._has_key(request):
                raise ApiError(401, "Incorrect or missing API key.", code="invalid_api_key")
            return await handler(request)

        return middleware

    def _has_key(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        sent = token.strip() if scheme.lower() == "bearer" else request.headers.get("X-Api-Key", "")
        given = sent.encode(errors="replace")
        return any([hmac.compare_digest(given, key) for key in self._keys])  # a list: all are compared

    # --- generating ----------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = decode(ChatRequest, await self._body(request))
        check_fields(body)
        return await self._generate(request, body, lambda: [chat_prompt(body)])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = decode(CompletionRequest, await self._body(request))
        check_fields(body)
        return await self._generate(request, body, lambda: completion_prompts(body))

    async def _generate(
        self, request: web.Request, body: GenerationFields, prompts: Callable[[], list[Prompt]]
    ) -> web.StreamResponse:
        model = check_model(body.model, self.settings.served)
        request_id = body.request_id or request[REQUEST_ID]
        params = parameters(body, self.settings.sampling_defaults, request_id)
        given = prompts()
        if len(given) * len(params) > MAX_SEQUENCES:
            raise bad_request(f"At most {MAX_SEQUENCES} prompts times n are taken in one request.", "prompt")
        limits = {"max_tokens": max_tokens_of(body), "truncate_prompt_tokens": body.truncate_prompt_tokens}
        job = Job(given, params, **limits)
        answer = Answer(model, isinstance(body, ChatRequest), secrets.randbits(64), int(time.time()))
        begun = self._submit(record_of(request), job, answer)
        try:
            if not body.stream:
                await asyncio.shield(job.done)
                return json_response(answer.whole(job))
            if not begun:
                await asyncio.shield(job.started)
            return await self._stream(request, body, job, answer)
        finally:
            self.engine.release(job)

    def _submit(self, record: Record | None, job: Job, answer: Answer) -> bool:
        """Begin to generate, or go on with what a predecessor on this connection had begun. Has its answer begun?"""
        before = record.predecessor if record else None
        if record and before and not before.begun:
            record.go_on()
        if before and (before.begun or self.engine.has(before.refs)):
            answer.seed, answer.created = before.seed, before.created
            for choice, characters in zip(job.choices, before.characters, strict=True):
                choice.characters = characters
            self.engine.submit(job, before.refs)
            return before.begun
        self.engine.submit(job)
        if record:
            record.stream(job.refs, answer.seed, answer.created)
        return False

    async def _stream(
        self, request: web.Request, body: GenerationFields, job: Job, answer: Answer
    ) -> web.StreamResponse:
        options = body.stream_options
        wants = bool(options and (options.include_usage or options.continuous_usage_stats))
        continuous = bool(options and options.continuous_usage_stats)
        stream = EventStream(request, job, Envelopes(answer, job, wants, continuous))
        try:
            response = await stream.begin()
            await stream.end(response)
            return response
        finally:
            stream.close()

    # --- text and models -----------------------------------------------------------------------------------------

    async def tokenize(self, request: web.Request) -> web.Response:
        body = decode(TokenizeRequest, await self._body(request))
        check_model(body.model, self.settings.served)
        check_built(body)
        if (bytes(body.messages) not in (b"", b"null")) == (body.prompt is not None):
            raise bad_request("Either prompt or messages must be given.", "prompt")
        if body.prompt is not None:
            prompt: Prompt = TextPrompt(body.prompt, body.add_special_tokens is not False)
        else:
            chat = ChatRequest(
                messages=body.messages,
                add_special_tokens=body.add_special_tokens,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
            )
            prompt = chat_prompt(chat)
        tokens, strings = await self.engine.tokenize(prompt, bool(body.return_token_strs))
        length = self.settings.max_model_len
        return json_response({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": strings})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = decode(DetokenizeRequest, await self._body(request))
        check_model(body.model, self.settings.served)
        return json_response({"prompt": await self.engine.detokenize(check_tokens(body.tokens, "tokens"))})

    async def models(self, request: web.Request) -> web.Response:
        cards = [self._card(name) for name in self.settings.served]
        ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}
        return json_response({"object": "list", "data": cards, **ends})

    async def model(self, request: web.Request) -> web.Response:
        return json_response(self._card(check_model(request.match_info["id"], self.settings.served)))

    def _card(self, name: str) -> dict[str, object]:
        """A model as OpenAI's and as Anthropic's clients read it."""
        return {
            "id": name,
            "object": "model",
            "created": self.settings.created,
            "owned_by": "actorserve",
            "root": self.settings.served[0],
            "parent": None,
            "max_model_len": self.settings.max_model_len,
            "type": "model",
            "display_name": name,
        }

    # --- operations ----------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        if missing := self.engine.not_ready():
            return json_response({"status": "not ready", "waiting_for": missing}, 503)
        return json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        return json_response({"version": actorserve.__version__})

    async def load(self, request: web.Request) -> web.Response:
        return json_response({"server_load": self.engine.in_flight()})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.engine.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    # --- bodies --------------------------------------------------------------------------------------------------

    async def _body(self, request: web.Request) -> bytes:
        """The whole body; 413 as soon as it is too long, 408 when it does not come, 415 if it is compressed."""
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() not in ("identity", ""):
            raise ApiError(415, f"Bodies are taken as they are, not with Content-Encoding: {_printable(encoding)}.")
        limit = self.settings.max_body_bytes
        too_long = ApiError(413, f"The body is longer than the {limit} bytes that --max-body-bytes allows.")
        if (request.content_length or 0) > limit:
            raise too_long
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > limit:
                        raise too_long
                    parts.append(part)
        except TimeoutError:
            raise ApiError(408, f"The body did not come within {BODY_S:.0f} s.") from None
        except web.RequestPayloadError as error:
            raise bad_request(f"The body is malformed: {error}") from None
        return b"".join(parts)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves in OpenAI's form; one that nobody expected is logged and touches only its own request."""
    request[REQUEST_ID] = _printable(request.headers.get("X-Request-Id", ""))[:MAX_REQUEST_ID] or uuid4().hex
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _as_json(request, error)
    except Exception as error:
        gone = request.transport is None or request.transport.is_closing()
        if gone and isinstance(error, ConnectionError):
            raise
        log.exception("%s %s failed", request.method, _printable(request.path))
        if request.writer.output_size > 0:  # the answer has begun: that it breaks off says that it is not whole
            raise ConnectionError("the answer is broken off") from None
        return ApiError(500, "The server made a mistake; its log says which.").response()


def _as_json(request: web.Request, error: web.HTTPException) -> web.Response:
    response = ApiError(error.status, f"{error.reason}: {request.method} {_printable(request.path)}").response()
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _printable(text: str) -> str:
    """What clients send in headers and paths may hold anything, also what is no UTF-8."""
    return "".join(filter(str.isprintable, text))


async def _add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    if REQUEST_ID in request:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
