"""A model is loaded and unloaded by its name, as llama-server's router has it; who is asked is loaded in any case."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ...accounts import check_model_of
from ...errors import bad_request
from ...generation.fields.decoding import decode_query, no_model
from ...generation.fields.unsupported import read
from ...llamacpp.about import UNLOADED, news, status
from ...llamacpp.schemas import LlamaModel, LlamaModelQuery
from ...middleware.context import ACCOUNT
from ...output.answer import encode
from ...settings import Settings, printable
from ...transport.json_response import json_response
from ...transport.watch import Watch, WatchLimits
from .administration import HasAdministration

PERIOD_S = 0.25  # between two looks at all models
QUIET_S = 15.0  # then a comment is sent, for proxies that give such connections up
STALL_S = 30.0  # what a watcher gets to take something
MOST_WATCHERS = 64  # of one frontend
COMMENT = b": nothing new\n\n"
EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class LoadingApi:
    """The handlers, by the names that routes.py has for them."""

    def __init__(
        self, engine: HasAdministration, settings: Settings, read_body: Callable[[web.Request], Awaitable[bytes]]
    ) -> None:
        self._engine, self._settings, self._read_body = engine, settings, read_body
        self._statuses: dict[int, dict[str, Any]] = {}
        self._looked_at = 0.0
        self.news = Watch(EVENTS, "clients watch the models of this frontend already.")

    async def load(self, request: web.Request) -> web.Response:
        """POST /models/load: answered once the model is there. It may be done twice."""
        await self._engine.administration.load_model(await self._model(request))
        return json_response({"success": True})

    async def unload(self, request: web.Request) -> web.Response:
        """POST /models/unload: answered once what it takes is given back. It may be done twice."""
        await self._engine.administration.unload_model(await self._model(request))
        return json_response({"success": True})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """GET /models/sse: from now on each change of a model's status, and a comment where there is none for long."""
        account = request.get(ACCOUNT)
        names = {
            name: one.model
            for one in self._settings.all_models
            for name in one.served
            if account is None or account.may_ask_for(name)
        }
        said_at = time.monotonic()
        last = self._told(names, said_at)

        def event(now: float) -> bytes:
            nonlocal last, said_at
            found = self._told(names, now)
            changed = [(name, state) for name, state in found.items() if state != last[name]]
            changed.sort(key=lambda one: one[1]["value"] != UNLOADED)  # who makes room is told before who takes it
            events = b"".join(b"data: %s\n\n" % encode(news(*one)) for one in changed)
            if not events and now - said_at < QUIET_S:
                return b""
            last, said_at = found, now
            return events or COMMENT

        return await self.news.stream(request, event, WatchLimits(PERIOD_S, STALL_S, MOST_WATCHERS))

    def _told(self, names: dict[str, int], now: float) -> dict[str, dict[str, Any]]:
        """The status of each. All models are looked at once in a period, for all who watch."""
        if not self._statuses or now - self._looked_at >= PERIOD_S:
            about, models = self._engine.administration, [one.model for one in self._settings.all_models]
            self._statuses = {one: status(about.model_state(one), about.load_problem(one)) for one in models}
            self._looked_at = now
        return {name: self._statuses[model] for name, model in names.items()}

    async def add(self, request: web.Request) -> web.Response:
        """POST /models. Nothing is downloaded while the server runs: it has the models that it was started with."""
        asked = read(LlamaModel, await self._read_body(request)).model
        if asked in self._settings.all_served:
            raise bad_request(f"model: {printable(asked)} is served already.", "model")
        text = "no model is downloaded while the server runs; name it with --also or in --models-preset, or put it into"
        raise bad_request(f"model: {text} --models-dir, and start the server again.", "model")

    async def remove(self, request: web.Request) -> web.Response:
        """DELETE /models: files are not the clients'."""
        asked = decode_query(LlamaModelQuery, request.query).model
        if not asked:
            raise bad_request("model must be named in the query: DELETE /models?model=NAME.", "model")
        if asked not in self._settings.all_served:
            raise no_model(asked)
        raise bad_request("model: none is deleted by clients; POST /models/unload gives back what it takes.", "model")

    async def _model(self, request: web.Request) -> int:
        """The number of the one that the body names."""
        asked = read(LlamaModel, await self._read_body(request)).model
        if asked not in self._settings.served:
            raise no_model(asked)
        check_model_of(request.get(ACCOUNT), asked)
        return self._settings.model
