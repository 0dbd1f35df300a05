"""From the body of a response to what is generated for it, and what is kept of it at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from ...errors import ApiError, bad_request
from ...generation.adapter import chat_request
from ...generation.prepare import PreparedRequest, ask_chat
from ...openai.responses.mcp.tools import McpServer
from ...openai.responses.references import Finder, names_items, resolved
from ...openai.responses.requests import check_tools, input_items, named, renamed, stand_in, to_chat
from ...openai.responses.schemas import Object, ResponsesRequest
from ...openai.responses.store import ResponseStore
from ...openai.responses.stored import History, StoredResponse, history
from ...openai.schemas import ChatRequest
from ...settings import Settings
from ..answering import seeded
from .tools import RequestFacts


class ResponseRequests:
    """Of one model."""

    def __init__(self, settings: Settings, keeping: ResponseStore) -> None:
        self._settings, self._keeping = settings, keeping

    def ask(
        self,
        body: ResponsesRequest,
        request_id: str,
        client: str,
        seeds: web.Request | None = None,
        before: History | None = None,
    ) -> tuple[ChatRequest, PreparedRequest]:
        """`seeds`: the request whose stream another server may go on with; `before`: what stands before its input,
        where it is known.
        """
        before = History(self.earlier(body, client)) if before is None else before
        try:
            chat = chat_request(to_chat(body, before.items) if before.lost is None else to_chat(stand_in(body)))
            chat = chat if seeds is None else seeded(seeds, chat)
            asked = ask_chat(chat, self._settings, request_id, client)
        except ApiError as error:
            raise renamed(error) from None
        asked.rendering["constrained_by"] = named(asked.rendering["constrained_by"])
        return chat, replace(asked, lost=before.lost)

    def found(self, body: ResponsesRequest, client: str, begun: bool = False) -> tuple[ResponsesRequest, History]:
        """It with the items that it names, and what stands before its input. `begun`: its answer, or a part of it, is
        there, though what it goes on from may be gone.
        """
        try:
            earlier = self.earlier(body, client)
            there = earlier if body.conversation is not None else ()
            return resolved(body, self._keeping, client, there), History(earlier)
        except ApiError as error:
            if not begun:
                raise
            return body, History([], error)

    def earlier(self, body: ResponsesRequest, client: str, kept: Finder | None = None) -> list[Object]:
        """What stands before its input; `kept`: where else than in the store it is looked for."""
        previous, found = body.previous_response_id, self._keeping if kept is None else kept
        if (name := body.conversation_id) is not None:
            if previous is not None:
                text = "previous_response_id and conversation both say what stands before input: give either."
                raise bad_request(text, "previous_response_id")
            return self._keeping.conversations.said(name, client)
        return history(lambda name: found.find(name, client), previous) if previous is not None else []

    def with_tools(
        self,
        raw: bytes,
        body: ResponsesRequest,
        servers: list[McpServer],
        who: tuple[str, str],
        before: History,
        keep: Callable[[str, Object], object] | None = None,
    ) -> RequestFacts:
        """One whose model may call tools of these servers. `who`: the request's id, and its client."""
        check_tools(body)
        return RequestFacts(
            *(body, raw, servers, before),
            lambda turn, before: self.ask(turn, *who, before=before)[1],
            keep or (lambda key, ended: self.keep(body, key, ended, who[1])),
        )

    def keep(self, body: ResponsesRequest, key: str, ended: dict[str, Any], client: str) -> bool:
        """Is it found again, if its client wants that?"""
        stored = StoredResponse(ended, input_items(body, key), client)
        if names_items(body) and self._keeping.find(stored.id, client) is not None:
            return True  # as it was when they were there
        self._keeping.conversations.add_response(stored)
        return body.store is not False and self._keeping.put(stored)
