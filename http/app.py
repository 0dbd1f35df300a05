"""The routes, and what every request passes: keys, sizes, deadlines, errors as JSON. Knows the Engine protocol only."""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from .anthropic.errors import body_of
from .errors import ApiError
from .generation.job import Engine
from .handlers.api import Api
from .handlers.page import Page
from .middleware.context import GO_ON, REFUSED, REQUEST_ID, UNFIT, name_request
from .middleware.edge import Edge, redirect
from .settings import Settings, printable
from .transport.json_response import error_response

log = logging.getLogger("http")
RESPONSE = "/v1/responses/{id:(?!compact$)[^/]+}"  # compact is what others have, and is missing here: 404, and not 405


def make_app(engine: Engine, settings: Settings) -> web.Application:
    """The application of one frontend."""
    api = Api(engine, settings)
    edge = Edge(settings)
    app = web.Application(middlewares=[_errors_as_json, edge.answer_preflight, edge.check_key])
    app.on_response_prepare.append(edge.add_headers)
    app[GO_ON] = api.responses.going_on()
    Page(engine, settings).add_to(app)
    app.add_routes(
        [
            web.post("/v1/chat/completions", api.chat),
            web.post("/v1/completions", api.completions),
            web.post("/v1/responses", api.respond),
            web.post("/v1/responses/input_tokens", api.count_input),
            web.get(RESPONSE, api.responses.retrieve),
            web.delete(RESPONSE, api.responses.delete),
            web.get("/v1/responses/{id}/input_items", api.responses.input),
            web.post("/v1/responses/{id}/cancel", api.responses.cancel),
            web.post("/v1/messages", api.messages),
            web.post("/v1/messages/count_tokens", api.count_tokens),
            web.get("/v1/models", api.models),
            web.get("/v1/models/{id:.+}", api.model),
            web.post("/inference/v1/generate", api.generate),
            web.get("/tokenizer_info", api.tokenizer_info),
            web.post("/tokenize", api.tokenize),
            web.post("/detokenize", api.detokenize),
            web.get("/health", api.health),
            web.get("/ping", api.health),
            web.post("/ping", api.health),
            web.get("/ready", api.ready),
            web.get("/version", api.version),
            web.get("/load", api.load),
            web.get("/metrics", api.metrics),
            web.get("/openapi.json", api.described.document),
        ]
    )
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves in OpenAI's form; one that nobody expected is logged and touches only its own request."""
    name_request(request, request.headers.get("X-Request-Id"))
    try:
        if UNFIT in request:
            raise request[UNFIT]
        return await handler(request)
    except ApiError as error:
        request[REFUSED] = error.with_traceback(None)  # whose frames would keep the request, which keeps this
        response = _error_for(request, error)
        if UNFIT in request:  # where the next one begins cannot be told
            response.force_close()
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        place = await redirect(request) if error.status == 404 else None
        return _as_json(request, error) if place is None else place
    except Exception as error:
        gone = request.transport is None or request.transport.is_closing()
        if gone and isinstance(error, ConnectionError):
            raise
        log.exception("%s %s failed", request.method, printable(request.path))
        if request.writer.output_size > 0:  # the answer has begun: that it breaks off says that it is not whole
            raise ConnectionError("the answer is broken off") from None
        return _error_for(request, ApiError(500, "The server made a mistake; its log says which."))


def _as_json(request: web.Request, error: web.HTTPException) -> web.Response:
    problem = ApiError(error.status, f"{error.reason}: {request.method} {printable(request.path)}")
    response = _error_for(request, problem)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _error_for(request: web.Request, error: ApiError) -> web.Response:
    """An error as the clients of this path read it."""
    response = error_response(error)
    if request.path.startswith("/v1/messages"):
        response.body = msgspec.json.encode(body_of(error, request[REQUEST_ID]))
    return response
