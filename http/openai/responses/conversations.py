"""Conversations that are kept: found by their ids, made longer by what clients add and what their responses say.

One is a record of the frontend that its id names, as responses are, and that one alone writes it; others read it. It is
written anew with each change, so that all of it is there or nothing, and what is used is forgotten last; in a log of
conversations alone, as all these changes take the room of what is old. What a response adds has ids that follow from
the response's: a successor that ends it again adds nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from ...errors import ApiError, bad_request
from ...generation.job import Engine
from .compaction import TRIGGER
from .requests import input_items
from .schemas import Object, ResponsesRequest
from .stored import KEY_LENGTH, StoredResponse, keeper_of, record_key

PREFIX = "conv_"
NO_KEY = "0" * KEY_LENGTH  # stands for any where lengths alone count
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

    def said(self) -> list[Object]:
        """What a response goes on from."""
        return [item for item in self.items if item["type"] != TRIGGER]  # what it asked for stands behind it

    def with_items(self, items: Iterable[Object], key: str) -> StoredConversation:
        """It, with those of the items that it has not. One whose id another item has gets one that is made of `key`, as
        all that their client has not named (stored.items_as_kept).
        """
        known = {item["id"]: item for item in self.items}
        for index, item in enumerate(map(_complete, items)):
            other = known.get(item["id"], item)
            new = item if key in item["id"] or other == item else item | {"id": f"in_{key}{index:04x}"}
            known.setdefault(new["id"], new)
        return msgspec.structs.replace(self, items=list(known.values()))

    def check_ids(self, items: Iterable[Object], field: str) -> None:
        """400 for an id that another item has."""
        known = {item["id"]: item for item in self.items}
        for index, item in enumerate(map(_complete, items)):
            if known.setdefault(item["id"], item) != item:
                path = f"{field}[{index}].id"
                raise bad_request(f"{path}: the conversation has another item {item['id'][:64]!r}.", path)

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
        self._engine, self._records = engine, engine.conversations

    def owner(self, name: str, field: str = "conversation_id") -> int:
        """The frontend that keeps the conversation of this id; 404 for what is no id of ours."""
        owner = keeper_of(name, PREFIX)
        if owner is None or owner >= self._engine.frontends:
            raise _not_found(name, field)
        return owner

    def get(self, name: str, client: str, field: str = "conversation_id") -> StoredConversation:
        """404 if it is not kept (any more), or another client's."""
        data = self._records.get(_key(name), self.owner(name, field))
        found = msgspec.json.decode(data, type=StoredConversation) if data else None
        if found is None or found.client != client:
            raise _not_found(name, field)
        return found

    def said(self, name: str, client: str) -> list[Object]:
        """What a response goes on from."""
        return self.get(name, client, "conversation").said()

    def put(self, stored: StoredConversation, field: str = "items") -> None:
        """413 if it is longer than before, and than requests may make it."""
        before = self._records.get(_key(stored.id)) or b""
        _check_size(stored, field, len(before))
        self._records.put(_key(stored.id), stored.encode())

    def delete(self, name: str) -> None:
        """It is not found any more; responses that it belongs to are."""
        self._records.put(_key(name), b"")

    def check_room(self, name: str, body: ResponsesRequest, client: str) -> None:
        """413 where what this response would add has no room."""
        found = self.get(name, client, "conversation")
        _check_size(found.with_items(input_items(body, NO_KEY), NO_KEY), "input", len(found.encode()))

    def add_response(self, stored: StoredResponse) -> None:
        """What a response was given and has said, once it has ended, if its conversation is still there."""
        if (name := stored.conversation) is None:
            return
        try:
            found = self.get(name, stored.client)
        except ApiError:  # deleted, or forgotten, meanwhile
            return
        key, output = stored.id.removeprefix("resp_"), stored.response["output"]
        for said in (output, map(_without_logprobs, output)):  # nothing goes on from them, and they are most of it
            longer = found.with_items([*stored.input, *said], key)
            if self._records.put(_key(name), longer.encode()):
                return
        log.error("%s is not in its conversation: it would be too long to be kept", stored.id)


def page_of_all(items: list[Object]) -> Object:
    """A list of them in OpenAI's form."""
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, **ends, "has_more": False}


def _complete(item: Object) -> Object:
    """As clients read it, who want a message's status."""
    return {"status": "completed", **item} if item["type"] == "message" else item


def _without_logprobs(item: Object) -> Object:
    if item["type"] != "message":
        return item
    return item | {"content": [part | {"logprobs": []} if part.get("logprobs") else part for part in item["content"]]}


def _check_size(stored: StoredConversation, field: str, before: int) -> None:
    """`before`: bytes that it has."""
    size = len(stored.encode())
    if size > max(MOST, before):
        text = f"{field}: the conversation would have {size} bytes, and at most {MOST} are kept of one."
        raise ApiError(413, text, field)


def _key(name: str) -> bytes:
    return record_key("conversation", name)


def _not_found(name: str, field: str) -> ApiError:
    return ApiError(404, f"Conversation with id {name[:64]!r} not found.", field, "not_found")
