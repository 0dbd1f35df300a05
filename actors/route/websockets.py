"""WebSockets on their way through: both directions, message by message, until either side ends. Where a replica cannot
be reached another one is asked, as for any other request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import aiohttp
from aiohttp import web

from .errors import RouteError, no_descriptors, nobody
from .fleet import Fleet
from .replica import Replica, ReplicaLost
from .request import RoutedRequest
from .settings import RouteSettings
from .upstream import GATEWAY, is_own, sent_headers

MOST_MESSAGE = 16 << 20  # bytes
BEAT_S = 20.0
REPLICA_LOST, CLIENT_LOST = aiohttp.WSCloseCode.SERVICE_RESTART, aiohttp.WSCloseCode.GOING_AWAY
OVER = (aiohttp.WSMsgType.ERROR, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)
log = logging.getLogger("route")


async def pass_socket(
    request: web.Request, fleet: Fleet, session: aiohttp.ClientSession, settings: RouteSettings
) -> web.StreamResponse:
    """One connection, to the replica with the least load that can be reached. It ends with its replica."""
    headers = sent_headers(request.headers, request.remote, settings.replica_api_key)
    for name in [name for name in headers if name.lower().startswith("sec-websocket-")]:
        headers.popall(name, None)
    asked = RoutedRequest(request.method, request.path_qs, headers, b"", model=request.query.get("model", ""))
    avoid, since, refusal = list[Replica](), time.monotonic(), nobody()
    for _ in range(settings.retries + 1):
        replica = await fleet.another(asked, avoid, since + settings.patience)
        if replica is None:
            break
        passage = Passage(request, session, asked)
        try:
            await replica.run(passage.go(replica))
            return passage.client
        except aiohttp.WSServerHandshakeError as error:
            refusal = RouteError(error.status if error.status >= 400 else 502, f"The replica refuses: {error.message}")
            if error.status not in GATEWAY:
                raise refusal from None
        except (ReplicaLost, aiohttp.ClientError, OSError) as error:
            if passage.is_reached:
                return await passage.end(replica, error)
            if is_own(error):
                raise no_descriptors() from None
        log.warning("a WebSocket is asked for again: %s does not take it", replica.address)
        since = time.monotonic()
        replica.fails()
        avoid.append(replica)
    raise refusal


class Passage:
    """A client's WebSocket, and one try to have a replica's for it."""

    def __init__(self, request: web.Request, session: aiohttp.ClientSession, asked: RoutedRequest) -> None:
        self._request, self._session, self._asked = request, session, asked
        wanted = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        self._protocols = [name.strip() for name in wanted if name.strip()]
        self.client = web.WebSocketResponse(max_msg_size=MOST_MESSAGE, heartbeat=BEAT_S, protocols=self._protocols)
        self.is_reached = False

    async def go(self, replica: Replica) -> None:
        """Until either side ends."""
        options: dict[str, Any] = {"protocols": self._protocols, "max_msg_size": MOST_MESSAGE, "heartbeat": BEAT_S}
        address = replica.address + self._asked.path
        async with self._session.ws_connect(address, headers=self._asked.headers, **options) as server:
            self.is_reached = True
            await self.client.prepare(self._request)
            await _copy_both(self.client, server)

    async def end(self, replica: Replica, error: Exception) -> web.WebSocketResponse:
        """The replica has gone, or the client has before it was answered."""
        log.warning("a WebSocket ends: %s (%s)", replica.address, type(error).__name__)
        if not self.client.prepared:
            raise nobody() from None
        await self.client.close(code=REPLICA_LOST, message=b"the server is gone")
        return self.client


Side = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _copy_both(client: web.WebSocketResponse, server: aiohttp.ClientWebSocketResponse) -> None:
    """Until one of them ends; the other one is told with which code, or that the first was lost."""
    to_client = asyncio.create_task(_copy(server, client, REPLICA_LOST, CLIENT_LOST))
    to_server = asyncio.create_task(_copy(client, server, CLIENT_LOST, REPLICA_LOST))
    ways = (to_client, to_server)
    try:
        ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # no client is there any more, or it is to leave this replica
        await server.close(code=CLIENT_LOST)
        raise
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    code = (to_client if to_client in ended else to_server).result()
    await asyncio.gather(server.close(code=code), client.close(code=code), return_exceptions=True)


async def _copy(giver: Side, taker: Side, giver_lost: int, taker_lost: int) -> int:
    """The code with which `giver` closes. Of one that ends without a word aiohttp says 1000, or 1006, which must not be
    sent: then, or where nothing reaches `taker` any more, it is the code for that.
    """
    while True:
        message = await giver.receive()
        try:
            if message.type is aiohttp.WSMsgType.TEXT:
                await taker.send_str(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY:
                await taker.send_bytes(message.data)
        except ConnectionError:
            return taker_lost
        if message.type is aiohttp.WSMsgType.CLOSE:
            return message.data or aiohttp.WSCloseCode.OK
        if message.type is aiohttp.WSMsgType.ERROR and isinstance(message.data, aiohttp.WebSocketError):
            return message.data.code  # what it sent was none of a WebSocket's
        if message.type in OVER:
            return giver_lost
