"""`python -m …unix_relay FD HOST PORT PID`: passes bytes between clients of a Unix socket and the server's port.

It knows no HTTP and keeps nothing: each connection is one to the port, whose ends are passed on one by one. A side that
does not read stops the other (64 KiB are between them). It dies with process PID, which has the socket, and to which it
writes a byte by standard output from time to time: its loop turns.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial

from .relay_process import CHUNK, beat, pass_on, run_relay, told_to_end


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client, until the server has closed its connection."""
    try:
        server = await asyncio.open_connection(host, port, limit=CHUNK)
    except OSError:  # the server ends
        writer.transport.abort()
        return
    await pass_on(reader, writer, server)


async def serve(fd: int, host: str, port: int) -> None:
    """Until the supervisor closes the standard input; who is connected then gets to the end."""
    listener, clients = socket.socket(fileno=fd), set[asyncio.Task[None]]()
    listener.setblocking(False)

    def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.ensure_future(relay(host, port, reader, writer))
        clients.add(client)
        client.add_done_callback(clients.discard)

    server = await asyncio.start_unix_server(come, sock=listener, limit=CHUNK)
    beat()
    await told_to_end().wait()
    server.close()
    await asyncio.gather(*clients, return_exceptions=True)


if __name__ == "__main__":
    run_relay("relay", int(sys.argv[4]), partial(serve, int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
