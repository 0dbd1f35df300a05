"""The control socket: what is said on it stands in protocol/sockets/control_wire.py. It knows only added commands.

It listens on an abstract address (telemetry/discovery.py), which is gone with the process. Only the server's own user
and root are answered; the kernel says who asks, and others have a few places of their own, in which they are told so.
Whoever is slow, or says too much, is cut off; requests and answers are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ...protocol.sockets.control_wire import REQUEST_BYTES, ControlAnswer, encode_answer, read_request
from ...protocol.wire import UNREADABLE
from ...telemetry.discovery import peer_of
from ..connections.descriptors import PAUSE_S, is_scarce

MOST_CLIENTS = 16
MOST_STRANGERS = 4  # of other users, who are only told that they may not ask
DEADLINE_S = 5.0  # for a request to come, and for its answer to be taken; the command itself has no limit
BACKLOG = 64
ROOT = 0
log = logging.getLogger("control")

Command = Callable[[dict[str, Any]], Awaitable[Any]]


class CommandRefused(Exception):
    """A command does not do what it is asked; the message is the answer."""


class Control:
    """Listens at `name`. `add` commands, then `start`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._commands: dict[str, Command] = {}
        self._listener: socket.socket | None = None
        self._clients: dict[asyncio.Task[None], bool] = {}  # may they ask?
        self._users = {os.getuid(), ROOT}

    def add(self, name: str, command: Command) -> None:
        """From now on `name` is answered by this coroutine function, which may raise CommandRefused."""
        self._commands[name] = command

    async def start(self) -> None:
        """OSError if the address is taken."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(f"\0{self._name}")
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._listen()

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for client in self._clients:
            client.cancel()

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_scarce(error):  # by a security policy, perhaps: that one is gone, and others may come
                    log.error("a client of the control socket cannot be accepted: %s", error)
                asyncio.get_running_loop().remove_reader(listener)  # who waits there is taken when there is one
                asyncio.get_running_loop().call_later(PAUSE_S, self._listen)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        """Serve it, if those of its kind have not taken all of their places."""
        connection.setblocking(False)
        may_ask = peer_of(connection)[1] in self._users
        if sum(one is may_ask for one in self._clients.values()) >= (MOST_CLIENTS if may_ask else MOST_STRANGERS):
            connection.close()
            return
        client = asyncio.get_running_loop().create_task(self._serve(connection, may_ask))
        self._clients[client] = may_ask
        client.add_done_callback(self._ended)

    def _ended(self, client: asyncio.Task[None]) -> None:
        del self._clients[client]
        if not client.cancelled() and (error := client.exception()) is not None:
            raise error  # a mistake in a command is the supervisor's own

    async def _serve(self, connection: socket.socket, may_ask: bool) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=REQUEST_BYTES)
        try:
            await self._talk(reader, writer, may_ask)
        except (ConnectionError, TimeoutError):  # it has gone, or is too slow for more
            return
        except OSError as error:
            if not is_scarce(error):
                raise
            log.error("a client of the control socket is cut off: %s", error)
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_ask: bool) -> None:
        """One connection: requests until its end."""
        try:
            while line := await _line(reader):
                if not may_ask:  # told now, since a connection that ends unread is reset, and the answer lost
                    raise CommandRefused("only the server's own user and root may ask")
                await _say(writer, await self._answer(line))
        except CommandRefused as refused:
            await _say(writer, ControlAnswer(error=str(refused)))

    async def _answer(self, line: bytes) -> ControlAnswer:
        try:
            request = read_request(line)
        except UNREADABLE as error:
            return ControlAnswer(error=f"this is no request: {error}")
        command = self._commands.get(request.command)
        if command is None:
            return ControlAnswer(error=f"there is no {request.command!r} among {', '.join(sorted(self._commands))}")
        try:
            return ControlAnswer(await command(request.arguments))
        except CommandRefused as refused:
            return ControlAnswer(error=str(refused))
        except OSError as error:
            if not is_scarce(error):
                raise
            return ControlAnswer(error=f"the server lacks the means for that now: {error.strerror}")


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next request, or nothing at the end."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.readline()
        except ValueError:
            raise CommandRefused(f"a request is one line of at most {REQUEST_BYTES} bytes") from None


async def _say(writer: asyncio.StreamWriter, answer: ControlAnswer) -> None:
    writer.write(encode_answer(answer))
    async with asyncio.timeout(DEADLINE_S):
        await writer.drain()
