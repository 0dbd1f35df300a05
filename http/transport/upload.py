"""Bodies of any length, which are never held as a whole: a form's fields, and its file piece by piece; or JSON so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aiohttp import BodyPartReader, MultipartReader, hdrs, web

from ..errors import ApiError, bad_request
from ..middleware.context import EXPECTS
from .body import BODY_S, BodyBudget, BudgetShare, ask_for, check_json, malformed_body
from .form import FORM, MALFORMED, MOST_FIELDS, malformed

FIELD_BYTES = 1 << 10
PIECE = 1 << 20  # bytes that are written at once
T = TypeVar("T")


async def read_upload(
    request: web.Request, name: str, write: Callable[[bytes], Awaitable[None]], budget: BodyBudget
) -> tuple[str | None, dict[str, str]]:
    """(the file's name, the other fields). `write` is given the field of this name in pieces; None: there was none."""
    share = BudgetShare(budget)
    if request.content_type != FORM:
        raise ApiError(415, f"The body is a form: its Content-Type is {FORM}.", code="unsupported_content_type")
    _begin(request, "A form with a file")
    try:
        return await _read_parts(MultipartReader(request.headers, request.content), name, write, share)
    except MALFORMED as error:
        raise malformed(error) from None
    finally:
        share.forget()


async def read_json(
    request: web.Request, write: Callable[[bytes], Awaitable[None]], budget: BodyBudget, kept: Callable[[], int]
) -> None:
    """`write` is given the body in pieces, and keeps so many bytes of them."""
    share = BudgetShare(budget)
    check_json(request)
    _begin(request, "This body")
    try:
        async for piece in _pieces(request.content.readany, share, kept):
            await write(piece)
    except web.RequestPayloadError as error:
        raise malformed_body(error) from None
    finally:
        share.forget()


def _begin(request: web.Request, what: str) -> None:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
        raise ApiError(415, f"{what} is taken as it is, without Content-Encoding.")
    if EXPECTS in request:
        ask_for(request)


async def _read_parts(
    reader: MultipartReader, name: str, write: Callable[[bytes], Awaitable[None]], share: BudgetShare
) -> tuple[str | None, dict[str, str]]:
    filename: str | None = None
    fields: dict[str, str] = {}
    count = 0
    while (part := await _in_time(reader.next())) is not None:
        count += 1
        if not isinstance(part, BodyPartReader) or count > MOST_FIELDS:
            raise bad_request(f"The form has parts in its parts, or more than {MOST_FIELDS}.")
        if part.name == name and filename is None:
            filename = part.filename or ""
            async for piece in _pieces(part.read_chunk, share):
                await write(piece)
        elif part.name:
            fields[part.name] = await _text(part, part.name)
        else:  # nobody wants it, and the connection's record has it
            async for _ in _pieces(part.read_chunk, share):
                pass
    return filename, fields


async def _pieces(
    read: Callable[[], Awaitable[bytes]], share: BudgetShare, kept: Callable[[], int] = int
) -> AsyncIterator[bytes]:
    piece = bytearray()
    while chunk := await _in_time(read()):
        piece += chunk
        share.grow(len(chunk), len(piece) + kept())
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def _text(part: BodyPartReader, name: str) -> str:
    text = bytearray()
    while chunk := await _in_time(part.read_chunk()):
        text += chunk
        if len(text) > FIELD_BYTES:
            raise bad_request(f"{name} is longer than {FIELD_BYTES} bytes.", name)
    return text.decode(errors="replace")


async def _in_time(waited: Awaitable[T]) -> T:
    """Something has to come of it within BODY_S, however long all of it takes."""
    try:
        async with asyncio.timeout(BODY_S):
            return await waited
    except TimeoutError:
        raise ApiError(408, f"Nothing of the body came for {BODY_S:.0f} s.") from None
