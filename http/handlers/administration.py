"""The handlers of http/admin_routes.py."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from aiohttp import web

from ..admin_routes import SleepOptions, WakeOptions
from ..errors import bad_request
from ..generation.fields.decoding import decode_query
from ..transport.json_response import json_response

PARTS = ("weights", "kv_cache")


class Administered(Protocol):
    """What an operator can ask of the frontend actor, beside what handlers/operations.py does."""

    def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> Awaitable[None]:
        """Weights and KV memory are given back, until `wake_up`."""

    def wake_up(self, parts: list[str]) -> Awaitable[None]:
        """They are there again."""

    def is_sleeping(self) -> bool:
        """Has somebody asked for a sleep?"""


class HasAdministration(Protocol):
    """The frontend's engine."""

    @property
    def administration(self) -> Administered: ...


class Administration:
    """The handlers, by the names that admin_routes.py has for them."""

    def __init__(self, engine: HasAdministration) -> None:
        self._engine = engine

    async def sleep(self, request: web.Request) -> web.Response:
        """Answered once memory is given back. It may be done twice."""
        options = decode_query(SleepOptions, request.query)
        refuses = options.new_requests == "refuse"
        await self._engine.administration.sleep(options.level, options.mode, refuses, options.max_wait)
        return json_response({"status": "asleep"})

    async def wake_up(self, request: web.Request) -> web.Response:
        """Answered once the weights are loaded, if they are wanted. It may be done twice."""
        decode_query(WakeOptions, request.query)
        wanted = [part.strip() for text in request.query.getall("tags", []) for part in text.split(",") if part.strip()]
        for part in wanted:
            if part not in PARTS:
                raise bad_request(f"tags must be among {' and '.join(PARTS)}, not {part:.64}.", "tags")
        await self._engine.administration.wake_up(wanted or list(PARTS))
        return json_response({"status": "asleep" if self._engine.administration.is_sleeping() else "awake"})

    async def is_sleeping(self, request: web.Request) -> web.Response:
        return json_response({"is_sleeping": self._engine.administration.is_sleeping()})
