"""`python -m …unix_relay FD HOST PORT PID`: passes bytes between clients of a Unix socket and the server's port.

It knows no HTTP and keeps nothing: each connection is one to the port, whose ends are passed on one by one. A side that
does not read stops the other (64 KiB are between them). It dies with process PID, which has the socket, and to which it
writes a byte by standard output from time to time: its loop turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

from setproctitle import setproctitle

from ...runtime.process import die_with_supervisor, leave_signals_to_supervisor

CHUNK = 64 << 10
BEAT_S = 0.25


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, to its end; if that is no good one, the other end is told so by a reset."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client, until the server has closed its connection."""
    try:
        server_reader, server_writer = await asyncio.open_connection(host, port, limit=CHUNK)
    except OSError:  # the server ends
        writer.transport.abort()
        return
    asked = asyncio.ensure_future(pump(reader, server_writer))
    try:
        await pump(server_reader, writer)
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()
        await asyncio.gather(writer.wait_closed(), server_writer.wait_closed(), return_exceptions=True)


def beat(fd: int) -> None:
    """Now, and every BEAT_S from now on."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the supervisor does not look now, or any more
        os.write(fd, b".")
    asyncio.get_running_loop().call_later(BEAT_S, beat, fd)


async def serve(fd: int, host: str, port: int) -> None:
    """Until the supervisor closes the standard input; who is connected then gets to the end."""
    listener, clients, over = socket.socket(fileno=fd), set[asyncio.Task[None]](), asyncio.Event()
    listener.setblocking(False)

    def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.ensure_future(relay(host, port, reader, writer))
        clients.add(client)
        client.add_done_callback(clients.discard)

    server = await asyncio.start_unix_server(come, sock=listener, limit=CHUNK)
    beat(sys.stdout.fileno())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await over.wait()
    server.close()
    await asyncio.gather(*clients, return_exceptions=True)


def main() -> None:
    fd, host, port, parent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    die_with_supervisor(parent)
    leave_signals_to_supervisor()
    os.set_blocking(sys.stdout.fileno(), False)
    setproctitle("actorserve: relay")
    import uvloop

    uvloop.run(serve(fd, host, port))


if __name__ == "__main__":
    main()
