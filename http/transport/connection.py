"""aiohttp's server with answers of our own where a request is so malformed that no route ever sees it.

What a head asks of the connection is looked at here, before the app is: the version, how the body is framed, and what
the client expects before it sends that. What cannot be is noted on the request, and answered by the app as any error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.http import HttpVersion10, RawRequestMessage, StreamWriter
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..errors import ApiError
from ..middleware.context import EXPECTS, UNFIT
from ..settings import printable
from .body import is_long
from .json_response import error_response

CONTINUES = "100-continue"
# What connections read of aiohttp's that aiohttp promises to nobody.
PRIVATE_SLOTS = ("_current_request", "_loop", "_messages", "_request_count", "_request_factory", "_waiter")
PRIVATE_OPTIONS = "_kwargs"  # of web.Server: what each of its connections is made with
PRIVATE_SENDING = "_send_headers_immediately"  # of web.StreamResponse: whether `prepare` does
MakeRequest = Callable[..., web.BaseRequest]
log = logging.getLogger("http")


def unknown_names(server: web.Server) -> list[str]:
    """The private names of aiohttp that this version of it does not have: with these missing it cannot be used."""
    slots = {name for kind in web.RequestHandler.__mro__ for name in getattr(kind, "__slots__", ())}
    others = (server, "Server", PRIVATE_OPTIONS), (web.StreamResponse, "StreamResponse", PRIVATE_SENDING)
    return [
        *(f"RequestHandler.{name}" for name in PRIVATE_SLOTS if name not in slots),
        *(f"{kind}.{name}" for owner, kind, name in others if not hasattr(owner, name)),
    ]


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ()

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._request_factory = partial(_request, manager.request_factory)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Of a body that is not wanted the rest may never come, where the client waits to be asked for it, or may be
        long: nothing else is taken on this connection.
        """
        if not request.content.is_eof() and (EXPECTS in request or is_long(request)):
            resp.force_close()
        return await super().finish_response(request, resp, start_time)

    def give_up(self, error: ApiError) -> None:
        """A request whose body has not come whole is answered with this error, and not waited for."""
        request = self._current_request
        if request is not None and not request.content.is_eof():
            request.content.set_exception(error)

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
            error = ApiError(status, f"The request is malformed: {reason}.")
        else:
            log.error("a request of %s failed", request.remote, exc_info=exc)
            error = ApiError(500, "The server made a mistake; its log says which.")
        response = error_response(error)
        response.force_close()
        return response


def below(root: str, make: MakeRequest) -> MakeRequest:
    """Requests for paths below `root` are as if it was not there: a proxy may cut it off, or leave it.

    Before anything looks at a path, so that keys and administration hold as ever.
    """

    def made(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
        path = message.path
        if path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/", "?"):
            cut = path[len(root) :]
            cut = cut if cut.startswith("/") else f"/{cut}"
            place, _, query = cut.partition("#")[0].partition("?")
            url = URL.build(path=place, query_string=query, encoded=True)  # of //a/b a path, and no host
            message = message._replace(path=cut, url=url)
        return make(message, *rest)

    return made


class _Writer(StreamWriter):
    """Says nothing of the software that the server is made of."""

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        headers.popall(hdrs.SERVER, None)
        await super().write_headers(status_line, headers)


def _request(
    make: Any,
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: StreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """The request as the app sees it: in a version that it can be answered in, and without an Expect header, which
    aiohttp would answer before anybody has looked for a key.
    """
    unfit, expected = _objection(message), message.headers.get(hdrs.EXPECT)
    if message.version not in (HttpVersion10, HttpVersion11):
        message = message._replace(version=HttpVersion11)
    if expected is not None:
        headers = CIMultiDict(message.headers)
        headers.popall(hdrs.EXPECT)
        message = message._replace(headers=CIMultiDictProxy(headers))
    request: web.BaseRequest = make(message, payload, protocol, _Writer(protocol, writer.loop), task)
    if unfit is not None:
        request[UNFIT] = unfit
    elif expected is not None and message.version == HttpVersion11:
        request[EXPECTS] = True
    return request


def _objection(message: RawRequestMessage) -> ApiError | None:
    """Why a request with this head is not served."""
    version, headers = message.version, message.headers
    if version not in (HttpVersion10, HttpVersion11):
        return ApiError(505, f"HTTP/{version.major}.{version.minor} is not spoken here: use HTTP/1.1.")
    codings = headers.getall(hdrs.TRANSFER_ENCODING) if hdrs.TRANSFER_ENCODING in headers else []
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        given = printable(", ".join(codings))[:100]
        return ApiError(501, f"Transfer-Encoding must be chunked if there is one, not {given}.")
    if codings and version == HttpVersion10:
        return ApiError(400, "Transfer-Encoding does not go with HTTP/1.0: send a Content-Length.")
    expected = headers.get(hdrs.EXPECT, CONTINUES)
    if expected.strip().lower() != CONTINUES and version == HttpVersion11:
        return ApiError(417, f"Expect must be {CONTINUES} if there is one, not {printable(expected)[:100]}.")
    return None


def _reason(error: HttpProcessingError, message: str | None) -> str:
    """In one line, without what may be a key."""
    if isinstance(error, LineTooLong):
        return f"a line of its head is longer than {error.args[1]} bytes"
    lines = (message or "").splitlines() or ["it could not be parsed"]
    return lines[0].rstrip(" :.")
