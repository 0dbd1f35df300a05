"""Errors as OpenAI's clients read them: one JSON body for every status. Knows no route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from aiohttp import web

CLIENT_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """An answer that is an error. `param` names the request's field, `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, object]:
        """The JSON object, also for an event inside a stream."""
        kind = TYPES.get(self.status, CLIENT_ERROR if self.status < 500 else SERVER_ERROR)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code or self.status}
        return {"error": error}

    def response(self) -> web.Response:
        """The HTTP response."""
        response = json_response(self.body(), self.status)
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after is not None:
            response.headers["Retry-After"] = str(self.retry_after)
        return response


def json_response(body: object, status: int = 200) -> web.Response:
    """A whole JSON answer."""
    from aiohttp import web  # here, since LLM needs errors and no HTTP

    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", charset="utf-8")


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400, with the field that is wrong."""
    return ApiError(400, message, param)


def overloaded(message: str) -> ApiError:
    """503 that is worth another try soon."""
    return ApiError(503, message, retry_after=1)
