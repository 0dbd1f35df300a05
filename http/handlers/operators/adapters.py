"""Adapters are loaded and unloaded while the server runs: vLLM's paths and bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...errors import ApiError, bad_request
from ...generation.adapters import LoadAdapterRequest, UnloadAdapterRequest, check_name
from ...generation.fields.unsupported import read
from ...settings import Settings
from .operations import ServerEngine


class AdaptersApi:
    """The handlers, by the names that routes.py has for them."""

    def __init__(
        self, engine: ServerEngine, settings: Settings, read_body: Callable[[web.Request], Awaitable[bytes]]
    ) -> None:
        self._engine, self._settings, self._read_body = engine, settings, read_body

    async def load(self, request: web.Request) -> web.Response:
        """POST /v1/load_lora_adapter."""
        self._check_enabled()
        body = read(LoadAdapterRequest, await self._read_body(request))
        check_name(body.lora_name, self._settings.served)
        if not body.lora_path:
            raise bad_request("lora_path must name the folder of an adapter.", "lora_path")
        await self._engine.load_adapter(body.lora_name, body.lora_path, bool(body.load_inplace))
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        """POST /v1/unload_lora_adapter."""
        self._check_enabled()
        body = read(UnloadAdapterRequest, await self._read_body(request))
        await self._engine.unload_adapter(body.lora_name)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    def _check_enabled(self) -> None:
        if not self._settings.adapters.enabled:
            raise ApiError(400, "Adapters are not enabled: start the server with --enable-lora.")
