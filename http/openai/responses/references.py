"""Items of the input that are named by their ids alone: those of its conversation, or of responses that are kept, stand
in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol

import msgspec

from ...errors import ApiError, bad_request
from .schemas import Object, ResponsesRequest
from .stored import KEY_LENGTH, StoredResponse

REFERENCE = "item_reference"


class Finder(Protocol):
    """Where responses are kept."""

    def find(self, name: str, client: str) -> StoredResponse | None:
        """The response of this id, if it is this client's."""


def resolved(
    request: ResponsesRequest, kept: Finder, client: str, conversation: Iterable[Object] = ()
) -> ResponsesRequest:
    """The request with the items themselves. ApiError where one is not kept, or is named twice. `conversation`: the
    items that the request goes on from.

    An item is taken once, so that a body of names is never made longer than all that is kept.
    """
    if not names_items(request):
        return request

    @cache
    def items_of(response: str) -> dict[str, Object]:
        """Its items by their ids."""
        stored = kept.find(response, client)
        return {} if stored is None else {item["id"]: item for item in (*stored.input, *stored.response["output"])}

    there = {item["id"]: item for item in conversation}
    taken: set[str] = set()
    items: list[Object] = []
    for index, item in enumerate(_items(request)):
        if is_reference(item):
            item = _found(item.get("id"), f"input[{index}].id", there, items_of)
            if item["id"] in taken:
                raise bad_request(f"input[{index}].id: the item {item['id']!r} is named twice.", f"input[{index}].id")
            taken.add(item["id"])
        items.append(item)
    return msgspec.structs.replace(request, input=items)


def names_items(request: ResponsesRequest) -> bool:
    """Are there items that are kept elsewhere?"""
    return any(map(is_reference, _items(request)))


def _items(request: ResponsesRequest) -> list[Object]:
    return request.input if isinstance(request.input, list) else []


def is_reference(item: Object) -> bool:
    """Of an item that is named. `type` may be left out, as OpenAI has it."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "id" in item and not {"role", "content"} & item.keys())


def _response_of(name: object) -> str | None:
    """The id of the response that an item of this id stands in."""
    _, _, rest = name.partition("_") if isinstance(name, str) else ("", "", "")
    return f"resp_{rest[:KEY_LENGTH]}" if len(rest) > KEY_LENGTH else None


def _found(name: object, path: str, there: dict[str, Object], items_of: Callable[[str], dict[str, Object]]) -> Object:
    if not isinstance(name, str):
        raise bad_request(f"{path} must be the id of an item.", path)
    item, response = there.get(name), _response_of(name)
    if item is None and response is not None:
        item = items_of(response).get(name)
    if item is None:
        kept = "Items are kept as long as their response is, and not where `store` was false."
        raise ApiError(404, f"{path}: item with id {name[:64]!r} not found. {kept}", path, "not_found")
    return item
