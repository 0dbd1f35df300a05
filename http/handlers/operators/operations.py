"""The handlers for whoever runs the server: how it is, and what it is told to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from aiohttp import web

import actorserve
from actorserve.actors.accounts.sent_key import is_among

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...generation.fields.unsupported import read
from ...generation.job import Engine
from ...middleware.context import ACCOUNT
from ...middleware.edge import sent_key
from ...paths.administration import AbortRequests, PauseOptions, ResetOptions
from ...settings import Settings
from ...transport.json_response import json_response
from .administration import HasAdministration
from .scaling import HasScaling


class ServerEngine(Engine, HasAdministration, HasScaling, Protocol):
    """What an operator can ask of the frontend actor, beside what requests need."""

    def of_model(self, model: int) -> ServerEngine:
        """The same, for requests to another of the server's models."""

    def not_ready(self) -> list[str]:
        """Why a request could not be served now: actors, each with its reason; empty when it could."""

    def degraded(self) -> list[str]:
        """Actors that cannot do their part, each with its reason, where requests are served all the same."""

    def load(self) -> int:
        """Requests that are being answered, by all frontends."""

    def metrics(self, accept: str = "") -> tuple[Iterable[bytes], str]:
        """Prometheus' text in the format that an Accept header asks for, part by part, and its Content-Type."""

    def load_adapter(self, name: str, path: str, in_place: bool) -> Awaitable[None]:
        """From now on requests may have it. ApiError 400 says what is wrong with it."""

    def unload_adapter(self, name: str) -> Awaitable[None]:
        """No new request may; it is let go of when the last one that has it ends. ApiError 404 if it is not there."""

    def reset_prefix_cache(self, reset_running_requests: bool) -> Awaitable[None]:
        """No later request finds a prefix that was computed before; whoever runs goes on, or is computed again."""

    def pause(self, mode: str, clear_cache: bool) -> Awaitable[None]:
        """Nothing is computed any more, until `resume`; requests that come wait."""

    def resume(self) -> Awaitable[None]:
        """Requests are computed again."""

    def is_paused(self) -> bool:
        """Has somebody asked for a pause?"""

    def abort_requests(self, request_ids: list[str], every: bool) -> Awaitable[int]:
        """End requests by their ids; how many answers they had."""

    def reset_encoder_cache(self) -> Awaitable[None]:
        """Embeddings of pictures are made anew."""

    def reset_mm_cache(self) -> Awaitable[None]:
        """Pictures and sounds that come from now on are processed anew."""


class Operations:
    """The handlers, by the names that routes.py has for them."""

    def __init__(
        self, engine: ServerEngine, settings: Settings, read_body: Callable[[web.Request], Awaitable[bytes]]
    ) -> None:
        self._engine = engine
        self._accounts, self._admin_key = settings.accounts, settings.admin_api_key
        self._read_body = read_body

    async def health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        if missing := self._rests() or self._engine.not_ready():
            return json_response({"status": "not ready", "waiting_for": missing}, 503)
        if missing := self._engine.degraded():
            return json_response({"status": "degraded", "waiting_for": missing})
        return json_response({"status": "ready"})

    def _rests(self) -> list[str]:
        """What operators have to do before anything is computed."""
        sleeps = ["POST /wake_up: it sleeps"] if self._engine.administration.sleeps_until_woken() else []
        return sleeps + (["POST /resume: it is paused"] if self._engine.is_paused() else [])

    async def version(self, request: web.Request) -> web.Response:
        return json_response({"version": actorserve.__version__})

    async def load(self, request: web.Request) -> web.Response:
        return json_response({"server_load": self._engine.load()})

    async def usage(self, request: web.Request) -> web.Response:
        """GET /v1/usage: a key's own; the admin's key sees all."""
        account = request.get(ACCOUNT)
        if not self._accounts.enabled or (account is None and not self._is_admin(request)):
            raise ApiError(404, "Usage is counted for the keys of --key-file; the key of --admin-api-key sees all.")
        found = self._accounts.usage(None if account is None else account.name)
        return json_response({"object": "list", "data": [one.body() for one in found]})

    def _is_admin(self, request: web.Request) -> bool:
        return self._admin_key is not None and is_among(sent_key(request), [self._admin_key.encode()])

    async def metrics(self, request: web.Request) -> web.Response:
        """Part by part: streams go on between them."""
        parts, content_type = self._engine.metrics(request.headers.get("Accept", ""))
        body = []
        for part in parts:
            body.append(part)
            await asyncio.sleep(0)
        return web.Response(body=b"".join(body), headers={"Content-Type": content_type})

    async def reset_encoder_cache(self, request: web.Request) -> web.Response:
        """It may be done twice."""
        await self._engine.reset_encoder_cache()
        return json_response({"status": "ok"})

    async def reset_mm_cache(self, request: web.Request) -> web.Response:
        """It may be done twice."""
        await self._engine.reset_mm_cache()
        return json_response({"status": "ok"})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """What is asked for stands in the query, as with vLLM, or in a JSON body. It may be done twice."""
        body = await self._read_body(request) if request.can_read_body else b""  # whatever none says of itself
        given = [decode_query(ResetOptions, request.query), *([read(ResetOptions, body)] if body else [])]
        await self._engine.reset_prefix_cache(any(one.reset_running_requests for one in given))
        return json_response({"status": "ok"})

    async def pause(self, request: web.Request) -> web.Response:
        """Answered once nothing is computed any more."""
        options = decode_query(PauseOptions, request.query)
        mode = "wait" if options.wait_for_inflight_requests else options.mode
        await self._engine.pause(mode, options.clear_cache)
        return json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return json_response({"status": "resumed"})

    async def is_paused(self, request: web.Request) -> web.Response:
        return json_response({"is_paused": self._engine.is_paused()})

    async def abort_requests(self, request: web.Request) -> web.Response:
        """An id is the client's own, of X-Request-Id, or that of the answer."""
        asked = read(AbortRequests, await self._read_body(request))
        named = [*asked.request_ids, *([asked.rid] if asked.rid else [])]
        if not named and not asked.abort_all:
            raise bad_request("request_ids must name at least one request, unless abort_all is true.", "request_ids")
        return json_response({"aborted": await self._engine.abort_requests(named, asked.abort_all)})
