"""Requests with a sound: the sound that the JSON of a line names by `file_url` is the file of a form, as with vLLM."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import aiohttp
import msgspec

from .files import Request

OF_SOUNDS = ("/audio/transcriptions", "/audio/translations")  # whatever a path begins with
MOST_BYTES = 1 << 30  # of a sound; what a server takes of it is the server's to say
DATA = "data:"
Fields = list[tuple[str, str | bytes]]


class FormError(Exception):
    """There is no form of this request; the message is for people."""


def takes_form(request: Request) -> bool:
    """Does its path read a form? The line's JSON is the form's fields."""
    return request.url.partition("?")[0].endswith(OF_SOUNDS)


async def fields_of(request: Request) -> Fields:
    """The form's fields, with the sound that `file_url` names. FormError if it cannot be had."""
    given: dict[str, Any] = {name: msgspec.json.decode(bytes(value)) for name, value in request.body.items()}
    if "file" in given:
        raise FormError("file cannot stand in a line of JSON: file_url names the sound")
    url = given.pop("file_url", None)
    if not isinstance(url, str):
        raise FormError("file_url must be an address, https: or data:, of the sound")
    fields: Fields = [("file", _in_address(url) if url[: len(DATA)].lower() == DATA else await _fetched(url))]
    for name, value in given.items():
        listed = isinstance(value, list)
        fields += [(f"{name}[]" if listed else name, _text(one)) for one in (value if listed else [value])]
    return [(name, value) for name, value in fields if value != "null"]


def form_of(fields: Fields) -> aiohttp.FormData:
    """One to send: each can be sent once."""
    form = aiohttp.FormData()
    for name, value in fields:
        if isinstance(value, bytes):
            form.add_field(name, value, filename=name)
        else:
            form.add_field(name, value)
    return form


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _in_address(url: str) -> bytes:
    head, _, data = url.partition(",")
    if not head.lower().endswith(";base64"):
        raise FormError("file_url: a data: address is data:TYPE;base64,DATA")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise FormError("file_url: its base64 cannot be read") from None


async def _fetched(url: str) -> bytes:
    """By a session of its own: the server's key is not for others."""
    if not url.lower().startswith(("http://", "https://")):
        raise FormError("file_url must begin with https://, http:// or data:")
    data = bytearray()
    try:
        async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as answer:
            answer.raise_for_status()
            async for piece in answer.content.iter_any():
                data += piece
                if len(data) > MOST_BYTES:
                    raise FormError(f"file_url is longer than {MOST_BYTES} bytes")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise FormError(f"file_url cannot be fetched: {str(error) or type(error).__name__}") from None
    return bytes(data)
