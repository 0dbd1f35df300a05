"""The way to frontends for who is in this server: it asks the supervisor for a connection, and gets a descriptor."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from ..protocol.sockets.relay_wire import ASK_BYTES, HERE, MOST_ASKED

TAKEN_BYTES = 8


class WayClosed(Exception):
    """The server takes no more requests: it ends, or has no connection left."""


class Way:
    """To all frontends, by the supervisor. `closed` is set once it takes no more."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._waiting: deque[asyncio.Future[socket.socket]] = deque()  # in the order of their asks
        self._room = asyncio.Semaphore(MOST_ASKED)
        self.closed = asyncio.Event()
        asyncio.get_running_loop().add_reader(channel, self._take)

    async def open(self, client: str) -> socket.socket:
        """A connection to a frontend, for a client of this address. WayClosed if there is none."""
        async with self._room:  # no more than the channel has room for are asked for at once
            if self.closed.is_set():
                raise WayClosed
            answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
            try:
                self._channel.send(client.encode("ascii", "replace")[:ASK_BYTES])
            except OSError:
                raise WayClosed from None
            self._waiting.append(answer)
            try:
                return await answer
            except asyncio.CancelledError:  # which may come just behind the answer
                if answer.done() and not answer.cancelled() and answer.exception() is None:
                    answer.result().close()
                raise

    def _take(self) -> None:
        while True:
            try:
                said, fds, _, _ = socket.recv_fds(self._channel, TAKEN_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                said, fds = b"", []
            if not said:
                self._close()
                return
            made = socket.socket(fileno=fds[0]) if said == HERE and fds else None
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(WayClosed()) if made is None else answer.set_result(made)
            elif made is not None:  # who asked has gone
                made.close()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        self.closed.set()
        while self._waiting:
            if not (answer := self._waiting.popleft()).done():
                answer.set_exception(WayClosed())
