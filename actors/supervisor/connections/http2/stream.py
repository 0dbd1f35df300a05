"""One stream: a request and its answer, passed on over a connection of its own to a frontend.

Both ways go by windows: of the request as much is on its way as the client was told that there is room for, and more
only when a frontend has taken it; of the answer what the client has room for, and the frontend waits for the rest.
The end of the stream, whoever's, is the connection's: so a frontend sees that its client has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Protocol

import h11
from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError

from ....runtime.way import Way, WayClosed
from ..relay_process import CHUNK
from .heads import BadHead, Headers, to_answer, to_request

LONGEST_HEAD = 256 << 10  # of an answer: it is the server's own
UNAVAILABLE = 503


class Session(Protocol):
    """What a stream needs of its connection."""

    way: Way
    client: str
    header_count: int

    async def send_headers(self, stream: int, headers: Headers, end: bool = False) -> None:
        """Of an answer, or behind it."""

    async def send_data(self, stream: int, data: bytes) -> None:
        """Once there is room for them. TimeoutError where the client makes none."""

    async def end(self, stream: int) -> None:
        """The answer is over."""

    async def reset(self, stream: int, code: ErrorCodes) -> None:
        """The stream is."""

    async def taken(self, stream: int, size: int) -> None:
        """So many bytes of the request have gone on: there is room for as many."""


class Stream:
    """Made when a request's head has come."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self._number = number
        self._body = bytearray()  # that has come and is not passed on
        self.unread = 0  # bytes of it and of its padding, by which windows count
        self._trailers: Headers = []
        self._ended = False  # the request
        self._chunked = False  # it goes to the frontend so
        self._more = asyncio.Event()
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self.waits = asyncio.Event()  # is set when its window has changed

    # --- what comes ----------------------------------------------------------------------------------------------

    def feed(self, data: bytes, size: int) -> None:
        """More of the request's body; no more than its window."""
        self._body += data
        self.unread += size
        self._more.set()

    def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """All of the request has come."""
        self._trailers.extend(trailers)
        self._ended = True
        self._more.set()

    # --- what becomes of it --------------------------------------------------------------------------------------

    async def run(self, head: Iterable[tuple[bytes, bytes]]) -> bool:
        """To its end, or until it is cancelled, since the client has gone. False if its frontend broke it off."""
        session, number = self._session, self._number
        try:
            request = to_request(head, self._ended and not self.unread, session.header_count)
            self._chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
            server = await asyncio.open_connection(sock=await session.way.open(session.client), limit=CHUNK)
        except (BadHead, WayClosed, OSError) as error:
            status = error.status if isinstance(error, BadHead) else UNAVAILABLE
            length = (b"content-length", b"0")
            await session.send_headers(number, [(b":status", str(status).encode()), length], end=True)
            await self._let_go()
            return True
        try:
            await self._exchange(request, *server)
            await self._let_go()
        except TimeoutError:  # the client does not read
            await session.reset(number, ErrorCodes.CANCEL)
        except (OSError, h11.ProtocolError):  # the frontend has broken off
            await session.reset(number, ErrorCodes.INTERNAL_ERROR)
            return False
        except StreamClosedError:  # by the client, of which this task is told in a moment
            return True
        finally:
            server[1].transport.abort()
        return True

    async def _exchange(self, request: h11.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An answer may begin, and end, before the whole request has come."""
        writer.write(self._http.send(request) or b"")
        await writer.drain()
        asking = asyncio.ensure_future(self._ask(writer))
        try:
            await self._answer(reader)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, writer: asyncio.StreamWriter) -> None:
        """Pass the body on. What fails here fails the answer, too, whose end is the stream's."""
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            while True:
                while self.unread:
                    data, size = bytes(self._body), self.unread
                    self._body.clear()
                    if data:
                        writer.write(self._http.send(h11.Data(data=data)) or b"")
                        await writer.drain()
                    self.unread -= size
                    await self._session.taken(self._number, size)
                if self._ended:
                    writer.write(self._http.send(h11.EndOfMessage(headers=self._own_trailers())) or b"")
                    return
                self._more.clear()
                await self._more.wait()

    def _own_trailers(self) -> Headers:
        """HTTP/1.1 has some only behind a body in chunks."""
        return self._trailers if self._chunked else []

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        session, number = self._session, self._number
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.InformationalResponse | h11.Response):
                await session.send_headers(number, to_answer(event.status_code, event.headers))
            elif isinstance(event, h11.Data):
                await session.send_data(number, bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                trailers = list(event.headers)
                await (session.send_headers(number, trailers, end=True) if trailers else session.end(number))
                return
            else:
                raise ConnectionResetError

    async def _let_go(self) -> None:
        """The answer is over. Of the request nothing more is wanted, which is no error."""
        if not self._ended:
            await self._session.reset(self._number, ErrorCodes.NO_ERROR)
