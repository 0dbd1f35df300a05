"""The fields of a form that has come whole (multipart/form-data)."""

from __future__ import annotations

import asyncio

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError

from ..errors import ApiError, bad_request
from ..middleware.context import BODY
from .body import BodyBudget, check_length, read_body

FORM = "multipart/form-data"
MOST_FIELDS = 64
PIECE = 1 << 20  # bytes of a part that are looked through at a time: nobody else has a turn meanwhile, in any case
TOO_LONG = 413
MALFORMED = (ValueError, RuntimeError, AssertionError, web.RequestPayloadError, HttpProcessingError)  # aiohttp's


async def read_form_body(request: web.Request, limit: int, budget: BodyBudget, sound: int) -> bytes:
    """Of a form with a sound: ApiError names that where it is longer than `sound` bytes (0: there is none in it)."""
    try:
        if BODY in request:
            return check_length(request[BODY], limit)
        return await read_body(request, limit, budget, json=False)
    except ApiError as error:
        if error.status == TOO_LONG and sound:
            raise too_long(sound) from None
        raise


def too_long(most: int) -> ApiError:
    """A sound has more bytes."""
    return ApiError(TOO_LONG, f"file: a sound has at most {most} bytes here (--max-audio-bytes).", "file")


async def read_form(request: web.Request, body: bytes) -> dict[str, list[bytes]]:
    """By their names; ApiError 415 if it is no form, 400 if it is malformed."""
    if request.content_type != FORM:
        raise ApiError(415, f"The body is a form: its Content-Type is {FORM}.", code="unsupported_content_type")
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), len(body) + 1, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    fields: dict[str, list[bytes]] = {}
    try:
        reader = MultipartReader(request.headers, stream)
        count = 0
        while (part := await reader.next()) is not None:
            count += 1
            if not isinstance(part, BodyPartReader) or count > MOST_FIELDS:
                raise bad_request(f"The form has parts in its parts, or more than {MOST_FIELDS}.")
            part.chunk_size = PIECE
            if part.name:
                fields.setdefault(part.name, []).append(bytes(await part.read()))
    except MALFORMED as error:
        raise malformed(error) from None
    return fields


def malformed(error: Exception) -> ApiError:
    """What is told where one of MALFORMED was raised."""
    text = error.message if isinstance(error, HttpProcessingError) else str(error)
    return bad_request(f"The form is malformed: {text or 'it does not end'}")
