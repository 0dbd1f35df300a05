"""/v1/conversations: made, changed, deleted; and the items in them. What a response adds, its own handlers do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from ...generation.fields.decoding import decode_query
from ...generation.fields.unsupported import read
from ...middleware.context import CLIENT
from ...openai.responses.conversations import PREFIX, StoredConversation, page_of_all
from ...openai.responses.messages import messages_of
from ...openai.responses.requests import check_metadata
from ...openai.responses.schemas import (
    ConversationChange,
    ConversationItems,
    ConversationRequest,
    InputItemsQuery,
    Object,
)
from ...openai.responses.store import response_id
from ...openai.responses.stored import items_as_kept, page_of
from ...transport.json_response import json_response
from .api import ResponsesApi


class ConversationsApi:
    """Its handlers."""

    def __init__(self, responses: ResponsesApi, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._engine, self._generator = responses.engine, responses.generator
        self._store = responses.keeping.conversations
        self._read_body = read_body

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/conversations."""
        body = read(ConversationRequest, await self._read_body(request) or b"{}")
        check_metadata(body.metadata or {})
        name = PREFIX + self._new_key()
        made = StoredConversation(name, int(time.time()), body.metadata or {}, [], request[CLIENT])
        made = self._with(made, body.items or [])[0]
        self._store.put(made)
        return json_response(made.body())

    async def retrieve(self, request: web.Request) -> web.Response:
        """GET /v1/conversations/{id}."""
        return json_response(self._found(request).body())

    async def update(self, request: web.Request) -> web.Response:
        """POST /v1/conversations/{id}: other metadata."""
        body = read(ConversationChange, await self._read_body(request))
        check_metadata(body.metadata or {})
        found = msgspec.structs.replace(await self._own(request), metadata=body.metadata or {})
        self._store.put(found, "metadata")
        return json_response(found.body())

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/conversations/{id}."""
        name = (await self._own(request)).id
        self._store.delete(name)
        return json_response({"id": name, "object": "conversation.deleted", "deleted": True})

    # --- items ---------------------------------------------------------------------------------------------------

    async def add(self, request: web.Request) -> web.Response:
        """POST /v1/conversations/{id}/items."""
        body = read(ConversationItems, await self._read_body(request))
        found = await self._own(request)
        longer, given = self._with(found, body.items)
        self._store.put(longer)
        return json_response(page_of_all([longer.item(item["id"]) for item in given]))

    async def items(self, request: web.Request) -> web.Response:
        """GET /v1/conversations/{id}/items."""
        wanted = decode_query(InputItemsQuery, request.query)
        return json_response(page_of(self._found(request).items, wanted))

    async def item(self, request: web.Request) -> web.Response:
        """GET /v1/conversations/{id}/items/{item}."""
        return json_response(self._found(request).item(request.match_info["item"]))

    async def remove(self, request: web.Request) -> web.Response:
        """DELETE /v1/conversations/{id}/items/{item}: the conversation without it."""
        left = (await self._own(request)).without(request.match_info["item"])
        self._store.put(left)
        return json_response(left.body())

    # --- which one -----------------------------------------------------------------------------------------------

    def _found(self, request: web.Request) -> StoredConversation:
        """As it is now, whichever frontend keeps it."""
        return self._store.get(request.match_info["id"], request[CLIENT])

    async def _own(self, request: web.Request) -> StoredConversation:
        """The same, where this frontend may change it."""
        await self._generator.give_to(request, self._store.owner(request.match_info["id"]))
        return self._found(request)

    def _with(self, stored: StoredConversation, given: list[Object]) -> tuple[StoredConversation, list[Object]]:
        """It with these items, and they as they are kept; a 400 names what no response could go on from."""
        before = [("conversation", item) for item in stored.said()]
        messages_of([*before, *((f"items[{index}]", item) for index, item in enumerate(given))])
        key = self._new_key()
        items = items_as_kept(given, key)
        stored.check_ids(items, "items")
        return stored.with_items(items, key), items

    def _new_key(self) -> str:
        return response_id(self._engine.index, secrets.randbits(64), int(time.time()))
