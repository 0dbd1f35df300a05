"""The routes, and what every request passes: keys, sizes, deadlines, errors as JSON. Knows the Engine protocol only."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .errors import UNKNOWN_PATH, WRONG_METHOD, ApiError
from .handlers.models import ModelApis
from .handlers.operators.operations import ServerEngine
from .middleware.context import DRAIN, ERRORS, GO_ON, REFUSED, REQUEST_ID, ROOT, UNFIT, name_request
from .middleware.edge import Middlewares, redirect
from .openapi.error_bodies import body_of
from .paths.elsewhere import reason_of
from .route import Route
from .routes import ROUTES, error_of
from .settings import Settings, printable
from .transport.body import pass_over_body
from .transport.json_response import error_response

log = logging.getLogger("http")


def make_app(engine: ServerEngine, settings: Settings, more: Sequence[Middleware] = ()) -> web.Application:
    """The application of one frontend. `more`: middlewares of whoever runs the server."""
    apis = ModelApis(engine, settings)
    api = apis.first
    edge = Middlewares(settings)
    app = web.Application(middlewares=[_errors_as_json, *more, edge.answer_preflight, edge.check_key])
    app.on_response_prepare.append(edge.add_headers)
    app.on_response_prepare.append(api.administration.add_report)
    app[ROOT] = settings.root_path
    app[GO_ON] = api.responses.going_on()
    app[DRAIN] = apis.drain
    app.on_shutdown.extend((api.page.end, api.loading.news.end))
    for route in ROUTES:
        if option := route.off_by(settings.off):
            _add(app, route, _refusing(option))
        elif route.handler:
            _add(app, route, apis.handler(route))
            log.debug("serves %s %s", route.method.upper(), route.template)
    return app


def _add(app: web.Application, route: Route, handler: Handler) -> None:
    if route.method == "get":
        app.router.add_get(route.path, handler, allow_head=route.head)
    else:
        app.router.add_route(route.method.upper(), route.path, handler)


def _refusing(option: str) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        flag = f"--no-{option.replace('_', '-')}"
        raise ApiError(404, f"{printable(request.path)} is not there: the server was started with {flag}.")

    return refuse


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
        else:
            await pass_over_body(request, response)
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        place = await redirect(request, request.app[ROOT]) if error.status == 404 else None
        response = _as_json(request, error) if place is None else place
        await pass_over_body(request, response)
        return response
    except Exception as error:
        gone = request.transport is None or request.transport.is_closing()
        if gone and isinstance(error, ConnectionError):
            raise
        log.exception("%s %s failed", request.method, printable(request.path))
        if request.writer.output_size > 0:  # the answer has begun: that it breaks off says that it is not whole
            raise ConnectionError("the answer is broken off") from None
        return _error_for(request, ApiError(500, "The server made a mistake; its log says which."))


def _as_json(request: web.Request, error: web.HTTPException) -> web.Response:
    text = f"{error.reason}: {request.method} {printable(request.path)}"
    code = {404: UNKNOWN_PATH, 405: WRONG_METHOD}.get(error.status)
    if error.status == 404 and (why := reason_of(request.path)):
        text += f".{why}"
    problem = ApiError(error.status, text, code=code)
    response = _error_for(request, problem)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _error_for(request: web.Request, error: ApiError) -> web.Response:
    """An error as who asks reads it."""
    response = error_response(error)
    write = body_of(request.get(ERRORS) or error_of(request.path), request.headers)
    if write is not None:
        response.body = msgspec.json.encode(write(error, request[REQUEST_ID]))
    return response
