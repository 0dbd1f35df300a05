"""The handlers of http/paths/administration.py."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...generation.fields.unsupported import read
from ...loads import LOAD_FORMAT, LOAD_HEADER, SECTIONS, EngineLoad, as_json, as_text, older, report, told
from ...paths.administration import (
    CollectiveRpcRequest,
    LoadsQuery,
    ProfileOptions,
    ServerInfoOptions,
    SleepOptions,
    UpdateWeightsRequest,
    WakeOptions,
    WorldSizeOptions,
)
from ...routes import GENERATING
from ...transport.json_response import json_response

PARTS = ("weights", "kv_cache")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Administered(Protocol):
    """What an operator can ask of the frontend actor, beside what handlers/operators/operations.py does."""

    def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> Awaitable[None]:
        """Weights and KV memory are given back, until `wake_up`."""

    def wake_up(self, parts: list[str]) -> Awaitable[None]:
        """They are there again."""

    def load_model(self, model: int) -> Awaitable[None]:
        """The model of this number is there again."""

    def unload_model(self, model: int) -> Awaitable[None]:
        """What it takes is given back, until somebody asks it."""

    def model_state(self, model: int) -> str:
        """Is it unloaded, loading or loaded?"""

    def load_problem(self, model: int) -> str:
        """Why it could not be loaded when it was asked for last; nothing where it could be."""

    def is_leaving(self, model: int) -> bool:
        """Is it unloaded once what it has begun has ended?"""

    def models_found_since(self) -> Awaitable[dict[str, str]]:
        """By name, models that are where some are looked for at the start, but have come since, and why these are not
        served.
        """

    def is_sleeping(self) -> bool:
        """Does it sleep, or is it to?"""

    def sleeps_until_woken(self) -> bool:
        """And by nothing but an operator's word?"""

    def update_weights(self, path: str, mode: str, wait_s: int) -> Awaitable[None]:
        """From then on all is computed with the weights of this folder; of the served model's, if it is empty."""

    def call_workers(
        self, method: str, args: list[Any], kwargs: dict[str, Any], timeout_s: float | None = None
    ) -> Awaitable[list[Any]]:
        """What has come of it in each worker."""

    def world_size(self, every: bool) -> int:
        """How many workers an engine has, or all that may be."""

    def start_profile(self, seconds: float) -> Awaitable[None]:
        """Sample all actors from now on, for so long at most."""

    def stop_profile(self) -> Awaitable[dict[str, Any]]:
        """Where the trace is, and whose part is missing."""

    def server_info(self, config_format: str) -> dict[str, Any]:
        """Versions, options, the model and all actors."""

    def engine_loads(self) -> list[EngineLoad]:
        """Requests and tokens of each engine."""


class HasAdministration(Protocol):
    """The frontend's engine."""

    @property
    def administration(self) -> Administered: ...


class Administration:
    """The handlers, by the names that paths/administration.py has for them."""

    def __init__(self, engine: HasAdministration, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._engine = engine
        self._read_body = read_body

    async def server_info(self, request: web.Request) -> web.Response:
        options = decode_query(ServerInfoOptions, request.query)
        return json_response(self._engine.administration.server_info(options.config_format))

    async def engine_loads(self, request: web.Request) -> web.Response:
        """GET /get_load."""
        return json_response([older(load, time.perf_counter()) for load in self._engine.administration.engine_loads()])

    async def loads(self, request: web.Request) -> web.Response:
        """GET /v1/loads."""
        query = decode_query(LoadsQuery, request.query)
        sections = [part.strip() for part in (query.include or "all").split(",")]
        if unknown := next((part for part in sections if part not in SECTIONS), None):
            raise bad_request(f"include must be among {', '.join(SECTIONS)}, not {unknown:.64}.", "include")
        found = self._engine.administration.engine_loads()
        if query.dp_rank is not None:
            found = [load for load in found if load.rank == query.dp_rank]
            if not found:
                raise bad_request(f"dp_rank: there is no engine {query.dp_rank}.", "dp_rank")
        shown = [told(load, sections) for load in found]
        if query.format == "prometheus":
            return web.Response(text=as_text(shown), headers={"Content-Type": PROMETHEUS})
        return json_response(as_json(shown, self._engine.administration.world_size(False)))

    async def add_report(self, request: web.Request, response: web.StreamResponse) -> None:
        """Of the load, to an answer whose client asks for it: a balancer that sends each request by it."""
        wanted = request.headers.get(LOAD_FORMAT)
        if wanted is None or request.path not in GENERATING or response.status != 200:
            return
        if (made := report(self._engine.administration.engine_loads(), wanted)) is not None:
            response.headers[LOAD_HEADER] = made

    async def start_profile(self, request: web.Request) -> web.Response:
        await self._engine.administration.start_profile(decode_query(ProfileOptions, request.query).seconds)
        return json_response({"status": "ok"})

    async def stop_profile(self, request: web.Request) -> web.Response:
        return json_response(await self._engine.administration.stop_profile())

    async def collective_rpc(self, request: web.Request) -> web.Response:
        asked = read(CollectiveRpcRequest, await self._read_body(request))
        call = self._engine.administration.call_workers
        return json_response({"results": await call(asked.method, asked.args, asked.kwargs, asked.timeout)})

    async def world_size(self, request: web.Request) -> web.Response:
        options = decode_query(WorldSizeOptions, request.query)
        return json_response({"world_size": self._engine.administration.world_size(options.include_dp)})

    async def update_weights(self, request: web.Request) -> web.Response:
        """Answered once requests are computed with them. It may be done twice."""
        asked = read(UpdateWeightsRequest, await self._read_body(request) or b"{}")
        if asked.update_info is not None:
            raise bad_request("update_info is not supported: weights are read from a folder (path).", "update_info")
        path = asked.path or asked.model_path or ""
        await self._engine.administration.update_weights(path, asked.mode, asked.max_wait)
        return json_response({"success": True, "message": f"weights of {path or 'the served model'} are loaded"})

    async def transfer_weights(self, request: web.Request) -> web.Response:
        text = "Weights are not taken from other processes' memory: a worker that dies could not load them again. "
        raise ApiError(501, text + "Write them to a folder below a --weights-folder, and POST /update_weights.")

    async def sleep(self, request: web.Request) -> web.Response:
        """Answered once memory is given back. It may be done twice."""
        options = decode_query(SleepOptions, request.query)
        refuses, begun = options.new_requests == "refuse", time.monotonic()
        await self._engine.administration.sleep(options.level, options.mode, refuses, options.max_wait)
        return json_response({"status": "sleeping", "level": options.level, "elapsed_ms": _ms_since(begun)})

    async def wake_up(self, request: web.Request) -> web.Response:
        """Answered once the weights are loaded, if they are wanted. It may be done twice."""
        decode_query(WakeOptions, request.query)
        wanted = [part.strip() for text in request.query.getall("tags", []) for part in text.split(",") if part.strip()]
        for part in wanted:
            if part not in PARTS:
                raise bad_request(f"tags must be among {' and '.join(PARTS)}, not {part:.64}.", "tags")
        begun = time.monotonic()
        await self._engine.administration.wake_up(wanted or list(PARTS))
        status = "sleeping" if self._engine.administration.is_sleeping() else "awake"
        return json_response({"status": status, "tags_woken": wanted or None, "elapsed_ms": _ms_since(begun)})

    async def is_sleeping(self, request: web.Request) -> web.Response:
        return json_response({"is_sleeping": self._engine.administration.is_sleeping()})


def _ms_since(begun: float) -> float:
    return round(1000 * (time.monotonic() - begun), 3)
