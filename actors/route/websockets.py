"""WebSockets on their way through: both directions, message by message, until either side ends."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web

from .asked import Asked
from .errors import RouteError
from .fleet import Fleet
from .replica import ReplicaLost
from .upstream import sent_headers

MOST_MESSAGE = 16 << 20  # bytes
BEAT_S = 20.0
log = logging.getLogger("route")


async def pass_socket(
    request: web.Request, fleet: Fleet, session: aiohttp.ClientSession, key: str | None
) -> web.StreamResponse:
    """One connection, to the replica with the least load. It ends with its replica."""
    headers = sent_headers(request.headers, request.remote, key)
    for name in [name for name in headers if name.lower().startswith("sec-websocket-")]:
        headers.popall(name, None)
    replica = fleet.choose(Asked(request.method, request.path_qs, headers, b"", model=request.query.get("model", "")))
    if replica is None:
        raise RouteError(503, "No replica can take this request now. Try again soon.")
    wanted = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
    client = web.WebSocketResponse(max_msg_size=MOST_MESSAGE, heartbeat=BEAT_S, protocols=wanted)

    async def both() -> None:
        address = replica.address + request.path_qs
        async with session.ws_connect(
            address, headers=headers, protocols=wanted, max_msg_size=MOST_MESSAGE, heartbeat=BEAT_S
        ) as server:
            await client.prepare(request)
            await _copy_both(client, server)

    try:
        await replica.run(both())
    except aiohttp.WSServerHandshakeError as error:
        raise RouteError(
            error.status if error.status >= 400 else 502, f"The replica refuses: {error.message}"
        ) from None
    except (ReplicaLost, aiohttp.ClientError, OSError) as error:
        log.warning("a WebSocket ends: %s (%s)", replica.address, type(error).__name__)
        if not client.prepared:
            raise RouteError(503, "No replica can take this request now. Try again soon.") from None
        await client.close(code=aiohttp.WSCloseCode.SERVICE_RESTART, message=b"the server is gone")
    return client


Side = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _copy_both(client: web.WebSocketResponse, server: aiohttp.ClientWebSocketResponse) -> None:
    ways = [asyncio.create_task(_copy(client, server)), asyncio.create_task(_copy(server, client))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    code = server.close_code or client.close_code or aiohttp.WSCloseCode.OK
    await asyncio.gather(server.close(code=code), client.close(code=code), return_exceptions=True)


async def _copy(giver: Side, taker: Side) -> None:
    async for message in giver:
        if message.type is aiohttp.WSMsgType.TEXT:
            await taker.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await taker.send_bytes(message.data)
