"""The fields of a form that has come whole (multipart/form-data)."""

from __future__ import annotations

import asyncio

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.base_protocol import BaseProtocol

from ..errors import ApiError, bad_request

FORM = "multipart/form-data"
MOST_FIELDS = 64


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
            if part.name:
                fields.setdefault(part.name, []).append(bytes(await part.read()))
    except (ValueError, RuntimeError, AssertionError, web.RequestPayloadError) as error:
        raise bad_request(f"The form is malformed: {error or 'it does not end'}") from None
    return fields
