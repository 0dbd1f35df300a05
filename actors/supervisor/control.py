"""The control socket: one JSON object a line asks, one answers. It knows no verb but those that are added.

    {"verb": "status", "arguments": {}}        →  {"result": …}  or  {"error": "why not"}

It listens on an abstract address (description.py), which is gone with the process. Only the server's own user and root
are answered. Whoever is slow, or says too much, is cut off; requests and answers are bounded.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

MOST_BYTES = 64 << 10  # of one request
MOST_CLIENTS = 16
DEADLINE_S = 5.0  # for a request to come, and for its answer to be taken; a verb itself may take as long as it needs
BACKLOG = 64
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
ROOT = 0

Verb = Callable[[dict[str, Any]], Awaitable[Any]]


class Refused(Exception):
    """A verb does not do what it is asked; the message is the answer."""


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One line."""

    verb: str
    arguments: dict[str, Any] = {}


class Control:
    """Listens at `name`. `add` verbs, then `start`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._verbs: dict[str, Verb] = {}
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._users = {os.getuid(), ROOT}

    def add(self, name: str, verb: Verb) -> None:
        """From now on `name` is answered by this coroutine function, which may raise Refused."""
        self._verbs[name] = verb

    async def start(self) -> None:
        """OSError if the address is taken."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"\0{self._name}")
            self._server = await asyncio.start_unix_server(
                self._accepted, sock=listener, backlog=BACKLOG, limit=MOST_BYTES
            )
        except OSError:
            listener.close()
            raise

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            writer.close()
            return
        client = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._ended)

    def _ended(self, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        if not client.cancelled() and (error := client.exception()) is not None:
            raise error  # a mistake in a verb is the supervisor's own

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (ConnectionError, TimeoutError):  # it has gone, or is too slow for more
            return
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: requests until its end."""
        try:
            while line := await _line(reader):
                self._check_user(writer)  # now, since a connection that ends unread is reset, and the answer lost
                await _say(writer, await self._answer(line))
        except Refused as refused:
            await _say(writer, {"error": str(refused)})

    def _check_user(self, writer: asyncio.StreamWriter) -> None:
        credentials = writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size
        )
        if CREDENTIALS.unpack(credentials)[1] not in self._users:
            raise Refused("only the server's own user and root may ask")

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            return {"error": f"this is no request: {error}"}
        verb = self._verbs.get(request.verb)
        if verb is None:
            return {"error": f"there is no {request.verb!r} among {', '.join(sorted(self._verbs))}"}
        try:
            return {"result": await verb(request.arguments)}
        except Refused as refused:
            return {"error": str(refused)}


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next request, or nothing at the end."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.readline()
        except ValueError:
            raise Refused(f"a request is one line of at most {MOST_BYTES} bytes") from None


async def _say(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    writer.write(msgspec.json.encode(answer) + b"\n")
    async with asyncio.timeout(DEADLINE_S):
        await writer.drain()
