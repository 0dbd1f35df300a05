"""Conversations that are kept: found by their ids, made longer by what clients add and what their responses say.

One is a record of the frontend that its id names, as responses are, and that one alone writes it; others read it. It is
written anew with each change, so that all of it is there or nothing, and what is used is forgotten last. What a
response adds has ids that follow from the response's: a successor that ends it again adds nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from ...errors import ApiError
from ...generation.job import Engine
from .compaction import TRIGGER
from .requests import input_items
from .schemas import Object, ResponsesRequest
from .stored import StoredResponse, keeper_of, record_key

PREFIX = "conv_"
LEAST = 320  # bytes of a record: of shorter ones other frontends know nothing
MOST = 1 << 20  # bytes up to which requests add to it: half of the longest record, so that there is room for an answer
log = logging.getLogger("http")


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation; its items are as responses have them."""

    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[Object]
    client: str = ""  # whose it is (idempotency_keys.client_of): nobody else finds it

    def body(self) -> Object:
        """As clients are told of it."""
        named = {"id": self.id, "object": "conversation"}
        return named | {"created_at": self.created_at, "metadata": self.metadata}

    def encode(self) -> bytes:
        """For the store. JSON, since numbers in it may be of any size."""
        return msgspec.json.encode(self).ljust(LEAST)

    def said(self, but: str = "") -> list[Object]:
        """What a response goes on from. `but`: the key of one whose items are not among it."""
        items = (item for item in self.items if item["type"] != TRIGGER)  # what it asked for stands behind it
        return [item for item in items if not but or but not in item["id"]]

    def with_items(self, items: Iterable[Object]) -> StoredConversation:
        """It, with those of the items that it has not."""
        known = {item["id"] for item in self.items}
        new = [_complete(item) for item in items if item["id"] not in known]
        return msgspec.structs.replace(self, items=[*self.items, *new])

    def item(self, name: str) -> Object:
        """404 if there is none of this id."""
        found = next((item for item in self.items if item["id"] == name), None)
        if found is None:
            raise ApiError(404, f"Item with id {name[:64]!r} not found in this conversation.", "item_id", "not_found")
        return found

    def without(self, name: str) -> StoredConversation:
        """It, without the item of this id."""
        gone = self.item(name)
        return msgspec.structs.replace(self, items=[item for item in self.items if item is not gone])


class ConversationStore:
    """One frontend's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def owner(self, name: str, field: str = "conversation_id") -> int:
        """The frontend that keeps the conversation of this id; 404 for what is no id of ours."""
        owner = keeper_of(name, PREFIX)
        if owner is None or owner >= self._engine.frontends:
            raise _not_found(name, field)
        return owner

    def get(self, name: str, client: str, field: str = "conversation_id") -> StoredConversation:
        """404 if it is not kept (any more), or another client's."""
        data = self._engine.get(_key(name), self.owner(name, field))
        found = msgspec.json.decode(data, type=StoredConversation) if data else None
        if found is None or found.client != client:
            raise _not_found(name, field)
        return found

    def put(self, stored: StoredConversation, field: str = "items") -> None:
        """413 if it is longer than requests may make it."""
        _check_size(stored, field)
        self._engine.put(_key(stored.id), stored.encode())

    def delete(self, name: str) -> None:
        """It is not found any more; responses that it belongs to are."""
        self._engine.put(_key(name), b"")

    def check_room(self, name: str, body: ResponsesRequest, client: str) -> None:
        """413 where what this response would add has no room."""
        _check_size(self.get(name, client, "conversation").with_items(input_items(body, "")), "input")

    def add_response(self, stored: StoredResponse) -> None:
        """What a response was given and has said, once it has ended, if its conversation is still there."""
        if (name := stored.conversation) is None:
            return
        try:
            found = self.get(name, stored.client)
        except ApiError:  # deleted, or forgotten, meanwhile
            return
        longer = found.with_items([*stored.input, *stored.response["output"]])
        if not self._engine.put(_key(name), longer.encode()):
            log.error("%s is not in its conversation: it would be too long to be kept", stored.id)


def page_of_all(items: list[Object]) -> Object:
    """A list of them in OpenAI's form."""
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, **ends, "has_more": False}


def _complete(item: Object) -> Object:
    """As clients read it, who want a message's status."""
    return {"status": "completed", **item} if item["type"] == "message" else item


def _check_size(stored: StoredConversation, field: str) -> None:
    size = len(stored.encode())
    if size > MOST:
        text = f"{field}: the conversation would have {size} bytes, and at most {MOST} are kept of one."
        raise ApiError(413, text, field)


def _key(name: str) -> bytes:
    return record_key("conversation", name)


def _not_found(name: str, field: str) -> ApiError:
    return ApiError(404, f"Conversation with id {name[:64]!r} not found.", field, "not_found")
