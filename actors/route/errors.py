"""The router's own errors, in OpenAI's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

TYPES = {
    **dict.fromkeys((401, 403), "authentication_error"),
    408: "timeout_error",
    503: "service_unavailable_error",
}
CODES = {401: "invalid_api_key"}  # OpenAI's, as the servers behind it have them
BODY_S = 60.0  # what a client gets to send its body, as at a replica


class RouteError(Exception):
    """An answer that is an error of the router's."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param


def error_response(error: RouteError) -> web.Response:
    """As clients read it."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    body = {"message": error.message, "type": kind, "param": error.param, "code": CODES.get(error.status)}
    response = web.json_response({"error": body}, status=error.status)
    if error.status == 503:
        response.headers["Retry-After"] = "1"
    if error.status == 408:
        response.force_close()  # the rest of the body may come yet
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def check_key(given: str) -> None:
    """One that is not UTF-8 would be sent without its other bytes, and so be the key of other requests."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise RouteError(400, "Idempotency-Key takes UTF-8.", "Idempotency-Key") from None


def no_descriptors() -> RouteError:
    """It is the router that has no more connections, and no replica's fault."""
    return RouteError(503, "The router has as many open files as it may have (ulimit -n). Try again soon.")


def nobody() -> RouteError:
    """All that could take it are gone, or have refused."""
    return RouteError(503, "No replica can take this request now. Try again soon.")


@asynccontextmanager
async def reading_body() -> AsyncIterator[None]:
    """A client's body comes within its time, and is what its head says, or is refused."""
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError:
        raise RouteError(408, f"The body did not come within {BODY_S:.0f} s.") from None
    except web.RequestPayloadError as error:
        raise RouteError(400, f"The body is malformed: {error}") from None
