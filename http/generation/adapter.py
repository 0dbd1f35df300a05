"""What adapters of other APIs share: parts of a body as structs, and errors that name a field as its API does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ..errors import ApiError, bad_request
from ..openai.schemas import ChatRequest
from .fields.decoding import decode

T = TypeVar("T")


def checked(kind: type[T], value: object, path: str) -> T:
    """A part of the body as its struct. ApiError 400 names what is wrong by its path."""
    return decode(kind, encoded(value, path), path)


def chat_request(chat: Mapping[str, object]) -> ChatRequest:
    """The chat request that an adapter's `to_chat` has written."""
    return decode(ChatRequest, encoded(chat, None))


def with_names(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """The same error with other names for fields, in its `param` and in its message."""
    found = re.match(r"\w+", error.param or "")
    if found is None or error.param is None or found[0] not in names:
        return error
    old, new = found[0], names[found[0]]
    message = re.sub(rf"(?<![\w-]){old}\b", new, error.message)  # and not in --max-logprobs, which is an option
    return ApiError(error.status, message, new + error.param[len(old) :], error.code, error.retry_after, error.lengths)


def naming(error: ApiError) -> str:
    """The message, with the field that is wrong where it does not say so: for bodies without a place for it."""
    found = re.match(r"\w+", error.param or "")
    if found is None or error.code is not None or re.search(rf"\b{found[0]}\b", error.message):
        return error.message
    return f"{error.param}: {error.message}"


def encoded(value: object, path: str | None) -> bytes:
    """JSON of what came as JSON; a 400 for what can be decoded and not be encoded."""
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        raise bad_request(f"{path or 'The body'} is nested too deeply.", path) from None
