"""The handlers that change how many engines run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from ...errors import bad_request
from ...generation.fields.unsupported import read
from ...paths.scaling import ScaleBody, ScaleElasticBody
from ...transport.json_response import json_response


class EngineScaling(Protocol):
    """Who knows the engines."""

    @property
    def most(self) -> int:
        """That there is room for."""

    def engines(self) -> int:
        """That are to run; the others are parked."""

    async def is_scaling(self) -> bool:
        """Is their number being changed, or are actors replaced? ApiError 503 if nobody says so."""

    async def scale(self, engines: int) -> None:
        """Let so many run; returns once they do. ApiError says what has kept it from that."""


class HasScaling(Protocol):
    """The part of the frontend actor that the handlers here need."""

    @property
    def scaling(self) -> EngineScaling:
        """Who knows the engines."""


class ScalingApi:
    """The handlers, by the names that paths/scaling.py has for them."""

    def __init__(self, engine: HasScaling, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._engines = engine.scaling
        self._read_body = read_body

    async def engines(self, request: web.Request) -> web.Response:
        return await self._said()

    async def scale(self, request: web.Request) -> web.Response:
        """Answered when so many serve; it may be asked twice."""
        body = read(ScaleBody, await self._read_body(request))
        await self._scale(body.engines, "engines")
        return await self._said()

    async def scale_elastic_ep(self, request: web.Request) -> web.Response:
        body = read(ScaleElasticBody, await self._read_body(request))
        await self._scale(body.new_data_parallel_size, "new_data_parallel_size")
        return json_response({"message": f"Scaled to {body.new_data_parallel_size} data parallel engines"})

    async def is_scaling_elastic_ep(self, request: web.Request) -> web.Response:
        return json_response({"is_scaling_elastic_ep": await self._engines.is_scaling()})

    async def _scale(self, engines: int, field: str) -> None:
        most = self._engines.most
        if engines > most:
            room = f"between 1 and {most}" if most > 1 else "1"
            text = f"{field} must be {room}, for which this server has room (--max-data-parallel-size), not {engines}."
            raise bad_request(text, field)
        await self._engines.scale(engines)

    async def _said(self) -> web.Response:
        scaling = await self._engines.is_scaling()
        return json_response(
            {"engines": self._engines.engines(), "max_engines": self._engines.most, "scaling": scaling}
        )
