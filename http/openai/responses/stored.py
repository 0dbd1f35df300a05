"""What is kept of a response, for those who fetch it, cancel it, or go on from it. Keeps nothing itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from ...errors import ApiError, bad_request
from ...generation.idempotency_keys import KEY_BYTES
from .compaction import TRIGGER
from .schemas import InputItemsQuery, Object

RUNNING = ("queued", "in_progress")
KEY_LENGTH = 26  # of an id's digits


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, as GET answers it, and the items that were its input (requests.input_items)."""

    response: Object
    input: list[Object]
    client: str = ""  # whose it is (idempotency_keys.client_of): nobody else finds it

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def status(self) -> str:
        return str(self.response["status"])

    @property
    def background(self) -> bool:
        return bool(self.response["background"])

    @property
    def previous(self) -> str | None:
        """The id of the response that this one goes on from."""
        found: str | None = self.response["previous_response_id"]
        return found

    def encode(self) -> bytes:
        """For the store; their number is its size there. JSON, since numbers in it may be of any size."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> StoredResponse:
        return msgspec.json.decode(data, type=cls)

    @property
    def conversation(self) -> str | None:
        """The id of the conversation that it belongs to, if it has ended so that it does."""
        found: Object | None = self.response.get("conversation")
        return found["id"] if found and self.status in ("completed", "incomplete") else None

    def cancelled(self) -> StoredResponse:
        """It, after somebody asked to cancel it. Only one in the background can be; one that has ended stays."""
        if not self.background:
            text = "Cannot cancel a synchronous response: only one that was made with background can be."
            raise bad_request(text, "response_id")
        if self.status not in RUNNING:
            return self
        return msgspec.structs.replace(self, response=self.response | {"status": "cancelled"})


@dataclass(frozen=True)
class History:
    """What stands before a response's input. `lost`: why some of it is not there, though the response was begun."""

    items: list[Object]
    lost: ApiError | None = None

    def without(self, key: str) -> History:
        """Before the input of the response of this key, which may have ended before, and added to it."""
        return replace(self, items=[item for item in self.items if key not in item.get("id", "")])


def history(find: Callable[[str], StoredResponse | None], response_id: str) -> list[Object]:
    """All items up to the end of this response, oldest first: what a request that goes on from it begins with."""
    chain: list[StoredResponse] = []
    following: str | None = response_id
    while following is not None:
        found = find(following)
        if found is None:
            message = f"Previous response with id {following!r} not found."
            raise ApiError(400, message, "previous_response_id", "previous_response_not_found")
        if found.status in (*RUNNING, "failed", "cancelled"):
            message = f"Previous response {following!r} has not completed: it is {found.status}."
            raise bad_request(message, "previous_response_id")
        chain.append(found)
        following = found.previous
    items = [item for stored in reversed(chain) for item in (*stored.input, *stored.response["output"])]
    return [item for item in items if item.get("type") != TRIGGER]  # what it asked for stands behind it


def items_as_kept(given: Iterable[Object], key: str) -> list[Object]:
    """With types and ids. `key`: of which the ids are made that are missing."""
    items = []
    for index, item in enumerate(given):
        kind = item.get("type") or "message"
        content = item.get("content")
        if isinstance(content, str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            item = item | {"content": [{"type": part, "text": content}]}
        own = item.get("id")  # nobody has looked at it
        items.append(item | {"type": kind, "id": own if own and isinstance(own, str) else f"in_{key}{index:04x}"})
    return items


def page_of(items: list[Object], wanted: InputItemsQuery, what: str = "input item") -> Object:
    """These of the items, which are given oldest first, as a list of OpenAI's API. `what` they are."""
    ordered = items if wanted.order == "asc" else items[::-1]
    begin = 0
    if wanted.after is not None:
        found = next((index for index, item in enumerate(ordered) if item["id"] == wanted.after), None)
        if found is None:
            raise bad_request(f"after: there is no {what} {wanted.after[:64]!r}.", "after")
        begin = found + 1
    page = ordered[begin : begin + wanted.limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": begin + len(page) < len(ordered)}


def not_found(response_id: str) -> ApiError:
    """404 for a response that was never kept, or is no longer."""
    return ApiError(404, f"Response with id {response_id!r} not found.", "response_id", "not_found")


def keeper_of(name: str, prefix: str) -> int | None:
    """The frontend that keeps what has this id; None for what is no id of ours."""
    digits = name.removeprefix(prefix)
    if digits == name or len(digits) != KEY_LENGTH or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    return int(digits[:2], 16)


def record_key(kind: str, name: str) -> bytes:
    """By which a record of this kind is kept."""
    return hashlib.sha256(f"{kind}\0{name}".encode()).digest()[:KEY_BYTES]
