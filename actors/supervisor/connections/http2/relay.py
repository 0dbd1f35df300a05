"""`python -m …http2.relay SETTINGS`: speaks HTTP/2 to clients of --http2-port, and HTTP/1.1 to frontends.

A stream of HTTP/2 is a connection of its own to a frontend, which the supervisor makes and holds as any other: so it
goes on with another frontend byte for byte, and no actor's death is seen by a client. This process keeps nothing: its
own death resets the connections of that moment, and the next one listens at the same sockets. Who speaks HTTP/1.1 at
this port is passed on as it is. With certificates it takes TLS off; they are read again when they have changed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from functools import partial
from typing import Any

import msgspec

from ....options.config import Config
from ....options.serving.certificates import LOOK_S, Certificates, first_context
from ....options.serving.tls import make_context
from ....runtime.way import Way, WayClosed
from ..descriptors import PAUSE_S
from ..relay_process import CHUNK, beat, pass_on, run_relay, told_to_end
from .door import Settings
from .frames import PREFACE
from .session import IDLE_S, Counts, Session

HTTP2, HTTP1 = "h2", "http/1.1"
HANDSHAKE_S = 10.0  # what a client gets for its part of the TLS handshake, or for its first bytes
GOODBYE_S = 5.0


class RelayServer:
    """All clients of the port."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._way = Way(socket.socket(fileno=settings.way))
        self._listeners = [socket.socket(fileno=fd) for fd in settings.listeners]
        self._clients = set[asyncio.Task[None]]()
        self.counts = Counts()
        self._config = Config(
            ssl_certfile=settings.certificate, ssl_keyfile=settings.key, ssl_ca_certs=settings.authorities
        )
        self._tls: ssl.SSLContext | None = None

    async def serve(self) -> None:
        """Until the supervisor closes the standard input; who is connected then gets to the end."""
        if self._settings.certificate is not None:
            first_context(self._config, is_first_life=False)  # waits for what can be used
            self._use_certificates()
        accepting = [asyncio.ensure_future(self._accept(listener)) for listener in self._listeners]
        renewing = asyncio.ensure_future(self._renew())
        beat(self.counts.gauges)
        over = asyncio.ensure_future(told_to_end().wait())
        no_more = asyncio.ensure_future(self._way.closed.wait())
        await asyncio.wait((over, no_more), return_when=asyncio.FIRST_COMPLETED)
        for task in (*accepting, renewing):
            task.cancel()
        for listener in self._listeners:
            listener.close()
        await over
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _use_certificates(self, _: ssl.SSLContext | None = None) -> None:
        self._tls = make_context(self._config, (HTTP2, HTTP1))

    async def _renew(self) -> None:
        certificates = Certificates(self._config, self._use_certificates, say=False)
        while self._settings.certificate is not None:
            await asyncio.sleep(LOOK_S)
            certificates.look(time.monotonic())

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError:  # for want of descriptors, or of the network: others may come
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._clients) >= self._settings.connections:
                connection.close()
                continue
            client = asyncio.ensure_future(self._come(connection, str(address[0]).partition("%")[0]))
            self._clients.add(client)
            client.add_done_callback(self._clients.discard)

    async def _come(self, connection: socket.socket, client: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(CHUNK)
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": GOODBYE_S}
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **tls)
        except OSError:  # it has broken off, or does not speak TLS as it should
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(client, reader, writer)
        except (OSError, TimeoutError, WayClosed):
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(self, client: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """By what its first bytes say; a client that says it speaks HTTP/2 (ALPN) is held to that."""
        first = b""
        async with asyncio.timeout(HANDSHAKE_S if self._tls is None else IDLE_S):
            while len(first) < len(PREFACE) and PREFACE.startswith(first):
                if not (data := await reader.read(CHUNK)):
                    return
                first += data
        tls = writer.get_extra_info("ssl_object")
        if first.startswith(PREFACE) or (tls is not None and tls.selected_alpn_protocol() == HTTP2):
            limits = (self._settings.header_bytes, self._settings.header_count)
            await Session(self._way, client, (reader, writer), limits, self.counts).run(first)
            return
        server = await asyncio.open_connection(sock=await self._way.open(client), limit=CHUNK)
        server[1].write(first)
        await pass_on(reader, writer, server)


async def serve(settings: Settings) -> None:
    """The life of the relay."""
    await RelayServer(settings).serve()


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=Settings)
    run_relay("http2", told.parent, partial(serve, told))
