"""What the processes of relays have in common: how they begin and beat, and how bytes are passed on as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence

from setproctitle import setproctitle

from ...protocol.sockets.relay_wire import beat_of
from ...runtime.signals import die_with_supervisor, leave_signals_to_supervisor

CHUNK = 64 << 10
BEAT_S = 0.25


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, to its end; if that is no good one, the other end is told so by a reset."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()


async def pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """One client, until the server has closed its connection. A side that does not read stops the other."""
    server_reader, server_writer = server
    asked = asyncio.ensure_future(pump(reader, server_writer))
    try:
        await pump(server_reader, writer)
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()
        await asyncio.gather(writer.wait_closed(), server_writer.wait_closed(), return_exceptions=True)


def beat(gauges: Callable[[], Sequence[int]] = tuple) -> None:
    """Now, and every BEAT_S from now on: the loop turns, and its gauges are these."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the supervisor does not look now, or any more
        os.write(sys.stdout.fileno(), beat_of(gauges()))
    asyncio.get_running_loop().call_later(BEAT_S, beat, gauges)


def told_to_end() -> asyncio.Event:
    """Set once the supervisor closes the standard input."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    return over


def run_relay(title: str, parent: int, serve: Callable[[], Coroutine[None, None, None]]) -> None:
    """The life of this process, which ends with process `parent`."""
    die_with_supervisor(parent)
    leave_signals_to_supervisor()
    os.set_blocking(sys.stdout.fileno(), False)
    setproctitle(f"actorserve: {title}")
    import uvloop

    uvloop.run(serve())
