"""WebSockets through the router, and which of both sides ends."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.support.routers import routed, status


async def test_a_web_socket_is_had_of_a_replica_that_is_there() -> None:
    """The others have died since the last look, or cannot take it."""

    async def greet(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.close()
        return socket

    async with routed(3, probe_interval=20.0) as made:
        await made.replicas[0].no_more()
        made.replicas[1].answer, made.replicas[2].answer = status(503), greet
        for _ in range(3):
            async with made.session.ws_connect("/v1/realtime?model=tiny") as socket:
                assert await socket.receive_str() == "hello"


async def test_web_sockets_go_through_and_end_with_either_side() -> None:
    async def echo(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        async for message in socket:
            if message.data == "end":
                await socket.close(code=4001)
            else:
                await (socket.send_str if isinstance(message.data, str) else socket.send_bytes)(message.data)
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = echo
        async with made.session.ws_connect("/v1/realtime?model=tiny", protocols=("realtime",)) as socket:
            assert socket.protocol == "realtime"
            await socket.send_str("one")
            await socket.send_bytes(b"\x01")
            assert (await socket.receive_str(), await socket.receive_bytes()) == ("one", b"\x01")
            await socket.send_str("end")
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE and socket.close_code == 4001
        made.replicas[0].answer = status(403)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await made.session.ws_connect("/v1/realtime")
        assert refused.value.status == 403


@pytest.mark.parametrize("resets", [True, False])
async def test_a_web_socket_whose_replica_dies_says_so(resets: bool) -> None:
    async def dies(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        assert request.transport is not None
        if resets:
            request.transport.abort()
        else:
            request.transport.close()
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = dies
        async with made.session.ws_connect("/v1/realtime") as socket:
            assert await socket.receive_str() == "hello"
            assert (await socket.receive(20)).type is aiohttp.WSMsgType.CLOSE and socket.close_code == 1012


async def test_a_replica_is_told_that_the_client_of_a_web_socket_is_gone() -> None:
    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def listens(request: web.Request, body: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.receive()
        ended.set_result(socket.close_code)
        return socket

    async with routed(1) as made:
        made.replicas[0].answer = listens
        socket = await made.session.ws_connect("/v1/realtime")
        assert await socket.receive_str() == "hello"
        assert socket._response.connection is not None and socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
        assert await asyncio.wait_for(ended, 20) == 1001
