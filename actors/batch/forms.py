"""Requests with a sound: the sound that the JSON of a line names by `file_url` is the file of a form, as with vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec

from ..files.lines import Request
from ..protocol.wire import UNREADABLE

OF_SOUNDS = ("/audio/transcriptions", "/audio/translations")  # whatever a path begins with
Fields = list[tuple[str, str]]


class FormError(Exception):
    """There is no form of this request; the message is for people. `retry_after`: there may be one later; what a server
    says of when, which may be nothing.
    """

    def __init__(self, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def takes_form(request: Request) -> bool:
    """Does its path read a form? The line's JSON is the form's fields."""
    return request.url.partition("?")[0].endswith(OF_SOUNDS)


def fields_of(request: Request) -> tuple[str, Fields]:
    """(the address of the sound, the other fields of the form). FormError if they are not."""
    url: Any = None
    fields: Fields = []
    for name, value in request.body.items():
        try:
            given = msgspec.json.decode(bytes(value))
            if name == "file_url":
                url = given
            else:
                fields += _texts(name, given)
        except UNREADABLE as error:
            raise FormError(f"{name}: {error}") from None
    if "file" in request.body:
        raise FormError("file cannot stand in a line of JSON: file_url names the sound")
    if not isinstance(url, str):
        raise FormError("file_url must be an address, https: or data:, of the sound")
    return url, fields


def form_of(sound: bytes, fields: Fields) -> aiohttp.FormData:
    """One to send: each can be sent once."""
    form = aiohttp.FormData()
    form.add_field("file", sound, filename="file")
    for name, value in fields:
        form.add_field(name, value)
    return form


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A field for each value that there is."""
    listed = isinstance(value, list)
    for one in value if listed else [value]:
        if one is not None:
            yield f"{name}[]" if listed else name, one if isinstance(one, str) else msgspec.json.encode(one).decode()
