"""What a frontend that ends tells the clients that it answers still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, WSMsgType, web
from aiohttp.test_utils import TestServer

from actorserve.actors.frontend.actor import Frontend


@pytest.mark.parametrize("draining", [False, True])
async def test_their_connections_are_closed_and_say_so(draining: bool) -> None:
    app = web.Application()
    frontend = cast(Any, SimpleNamespace(draining=draining))

    async def close(request: web.Request, response: web.StreamResponse) -> None:
        await Frontend._close_when_draining(frontend, request, response)

    async def socket(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.send_str("hi")
        await response.close()
        return response

    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    app.on_response_prepare.append(close)
    app.router.add_get("/socket", socket)
    app.router.add_get("/answer", answer)
    async with TestServer(app) as server, ClientSession(server.make_url("/")) as client:
        async with client.get("/answer") as response:
            assert response.headers.get("Connection") == ("close" if draining else None)
        async with client.ws_connect("/socket") as opened:
            assert (await opened.receive()).type == WSMsgType.TEXT, "a handshake has a Connection of its own"
