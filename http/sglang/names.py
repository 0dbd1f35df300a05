"""Fields of SGLang's that its clients send to OpenAI's paths, and what they stand for there."""

from __future__ import annotations

from typing import TypeVar

from ..errors import bad_request
from ..llamacpp.names import LlamaFields

T = TypeVar("T")
AdapterName = str | list[str | None] | None  # a list: for each prompt


class SglangFields(LlamaFields, kw_only=True):
    """Of chats and completions."""

    request_id: str | None = None
    rid: str | list[str] | None = None  # the same; of several names the first

    def __post_init__(self) -> None:
        given = self.rid[:1] if isinstance(self.rid, list) else [self.rid]
        self.request_id = self.request_id or next(iter(given), None)


def one_of(given: T | list[T] | list[T | None] | None, name: str) -> T | None:
    """The one value of all prompts. 400 where they differ."""
    if not isinstance(given, list):
        return given
    if any(other != given[0] for other in given[1:]):
        raise bad_request(f"{name}: all prompts of a request have the same here; send them apart.", name)
    return given[0] if given else None
