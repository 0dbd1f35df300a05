"""A model is loaded and unloaded by its name, as llama-server's router has it; who is asked is loaded in any case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...accounts import check_model_of
from ...generation.fields.decoding import no_model
from ...generation.fields.unsupported import read
from ...llamacpp.schemas import LlamaModel
from ...middleware.context import ACCOUNT
from ...settings import Settings
from ...transport.json_response import json_response
from .administration import HasAdministration


class LoadingApi:
    """The handlers, by the names that routes.py has for them."""

    def __init__(
        self, engine: HasAdministration, settings: Settings, read_body: Callable[[web.Request], Awaitable[bytes]]
    ) -> None:
        self._engine, self._settings, self._read_body = engine, settings, read_body

    async def load(self, request: web.Request) -> web.Response:
        """POST /models/load: answered once the model is there. It may be done twice."""
        await self._engine.administration.load_model(await self._model(request))
        return json_response({"success": True})

    async def unload(self, request: web.Request) -> web.Response:
        """POST /models/unload: answered once what it takes is given back. It may be done twice."""
        await self._engine.administration.unload_model(await self._model(request))
        return json_response({"success": True})

    async def _model(self, request: web.Request) -> int:
        """The number of the one that the body names."""
        asked = read(LlamaModel, await self._read_body(request)).model
        if asked not in self._settings.served:
            raise no_model(asked)
        check_model_of(request.get(ACCOUNT), asked)
        return self._settings.model
