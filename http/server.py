"""aiohttp's server with answers of our own where a request is so malformed that no route ever sees it."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from .errors import ApiError

LONGEST_LINE = 32 << 10  # of a request's head; tokens of some sign-on systems need more than aiohttp's 8 KiB
log = logging.getLogger("http")


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What could not be parsed is the client's mistake, told to it as JSON; all else is ours and logged."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("the answer has begun, or nobody is there to read it")
        if isinstance(exc, HttpProcessingError):
            reason = _reason(exc, message)
            log.debug("a malformed request of %s: %s", request.remote, reason)
            response = ApiError(status, f"The request is malformed: {reason}.").response()
        else:
            log.error("a request of %s failed", request.remote, exc_info=exc)
            response = ApiError(500, "The server made a mistake; its log says which.").response()
        response.force_close()
        return response


def _reason(error: HttpProcessingError, message: str | None) -> str:
    """In one line, without what may be a key."""
    if isinstance(error, LineTooLong):
        return f"a line of its head is longer than {LONGEST_LINE} bytes"
    lines = (message or "").splitlines() or ["it could not be parsed"]
    return lines[0].rstrip(" :.")
