"""Middlewares of whoever runs the server: which are taken, and what they see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.actors.frontend.middlewares import load_middlewares
from actorserve.actors.options.config import ConfigError
from actorserve.http.errors import ApiError
from tests.http.serving import serving


@web.middleware
async def tell(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.headers.get("X-Refused"):
        raise ApiError(403, "Not on Sundays.")
    response = await handler(request)
    response.headers["X-Seen"] = request.path
    return response


async def plain(request: web.Request, handler: Handler) -> web.StreamResponse:
    return await handler(request)


@pytest.fixture
def names() -> Iterator[ModuleType]:
    module = sys.modules["operators_own"] = ModuleType("operators_own")
    module.__dict__.update(tell=tell, plain=plain, number=4)
    yield module
    del sys.modules["operators_own"]


async def test_they_see_requests_and_answers(names: ModuleType) -> None:
    async with serving(more=load_middlewares(["operators_own:tell"]), api_keys=["one"]) as served:
        answer = await served.ask("GET", "/v1/models", X_Api_Key="one")
        assert answer.status == 200 and answer.headers["x-seen"] == "/v1/models"
        answer = await served.ask("GET", "/v1/models", X_Refused="yes")
        assert answer.status == 403 and answer.error["message"] == "Not on Sundays."
        assert (await served.ask("GET", "/v1/models")).status == 401, "keys are asked for behind them"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere_at_all:tell", "nowhere_at_all cannot be imported: ModuleNotFoundError"),
        ("operators_own:none", "operators_own has no none"),
        ("operators_own:plain", "it is no middleware of aiohttp"),
        ("operators_own:number", "it is no middleware of aiohttp"),
        ("operators_own", "operators_own has no "),
    ],
)
def test_what_is_none(names: ModuleType, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--middleware: {name}: {reason}"):
        load_middlewares([name])
