"""Whole answers of JSON, errors among them."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ..errors import ApiError


def json_response(body: object, status: int = 200) -> web.Response:
    """A whole JSON answer."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", charset="utf-8")


def error_response(error: ApiError) -> web.Response:
    """An error in OpenAI's form, with the headers that go with its status."""
    response = json_response(error.body(), error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response
