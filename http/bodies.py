"""Reading a request's body: whole, within its size and its time."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from .errors import ApiError, bad_request
from .notes import EXPECTS
from .resume import record_of
from .settings import printable

BODY_S = 60.0  # what a client gets to send its body
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = ("application/json", "text/json")


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body; 413 as soon as it is too long, 408 when it does not come, 415 if it is compressed or no JSON."""
    _check_kind(request.headers.get(hdrs.CONTENT_TYPE, ""))
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() not in ("identity", ""):
        raise ApiError(415, f"Bodies are taken as they are, not with Content-Encoding: {printable(encoding)}.")
    too_long = ApiError(413, f"The body is longer than the {limit} bytes that --max-body-bytes allows.")
    if (request.content_length or 0) > limit:
        raise too_long
    parts, size = [], 0
    try:
        if request.content.is_eof():  # it came with the head, as most do: nothing is waited for
            body = request.content.read_nowait()
            if len(body) > limit:
                raise too_long
            return body
        if EXPECTS in request:
            _ask_for(request)
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


def _ask_for(request: web.Request) -> None:
    """The client waits for this before it sends the body."""
    record = record_of(request)
    if record is not None:
        record.interim(CONTINUE)
    elif request.transport is not None:
        request.transport.write(CONTINUE)


def _check_kind(given: str) -> None:
    """What says of itself that it is something else. Forms and plain text are what any site's page may send unasked."""
    kind = given.partition(";")[0].strip().lower()
    if kind and kind not in JSON and not kind.endswith("+json"):
        text = f"Bodies are JSON: their Content-Type is application/json, not {printable(kind)[:100]}."
        raise ApiError(415, text, code="unsupported_content_type")
