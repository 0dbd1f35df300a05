"""One connection of HTTP/2: its frames, and the streams that are open on it.

A client that does not read is not read from, so that what is to be written to it is bounded. What costs the server more
than its client (streams opened and reset at once, pings, settings, frames without bytes) has an allowance, which grows
with time; who has used it up is told ENHANCE_YOUR_CALM, and goes. What breaks the protocol's rules ends this connection
and no other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from ....runtime.way import Way
from ..relay_process import CHUNK
from .frames import Frames, Misused
from .heads import Headers
from .stream import Stream

MOST_STREAMS = 128  # of a connection at once
WINDOW = 64 << 10  # of a stream: what may wait here for a frontend
CONNECTION_WINDOW = 1 << 20
IDLE_S = 120.0  # without a stream, before it is closed; the first head has to come within
STALL_S = 30.0  # what a client gets to make room for more of an answer, before its stream is reset
TO_LEAVE_S = 1.0  # what a client gets to read why it is closed
ALLOWANCE, A_SECOND = 1000.0, 100.0  # of what costs more than it brings


@dataclass
class Counts:
    """Of all connections of this process, in the order of its gauges."""

    connections: int = 0
    streams: int = 0
    requests: int = 0
    resets: int = 0
    broken: int = 0
    bad: int = 0

    def gauges(self) -> tuple[int, ...]:
        return (self.connections, self.streams, self.requests, self.resets, self.broken, self.bad)


class Session:
    """It serves a client until one of both has enough."""

    def __init__(
        self,
        way: Way,
        client: str,
        ends: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        limits: tuple[int, int],
        counts: Counts,
    ) -> None:
        """`limits`: bytes and lines of a head."""
        self.way, self.client = way, client
        self._reader, self._writer = ends
        header_bytes, self.header_count = limits
        self._counts = counts
        self._streams: dict[int, Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._allowance, self._spent_at = ALLOWANCE, time.monotonic()
        self._last = 0  # the stream that was opened last
        self._speaks = True  # frames may still be sent
        self._leaving: int | None = None  # streams beyond this one are refused
        self._patience: asyncio.Timeout | None = None
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._http = h2.connection.H2Connection(config)
        self._http.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW - 1,
                SettingCodes.MAX_HEADER_LIST_SIZE: header_bytes,
                SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self._http.decoder.max_header_list_size = header_bytes
        self._frames = Frames(self._http.max_inbound_frame_size)

    async def run(self, first: bytes) -> None:
        """`first`: what was read of it."""
        self._counts.connections += 1
        leaving = asyncio.ensure_future(self._leave())
        try:
            await self._serve(first)
        except (OSError, TimeoutError):  # it has gone, or is idle
            pass
        finally:
            self._speaks = False
            self._counts.connections -= 1
            leaving.cancel()
            tasks = [leaving, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, data: bytes) -> None:
        self._http.initiate_connection()
        self._http.increment_flow_control_window(CONNECTION_WINDOW)
        async with asyncio.timeout(IDLE_S) as self._patience:
            while data:
                try:
                    for event in self._http.receive_data(self._frames.take(data)):
                        self._see(event)
                except h2.exceptions.ProtocolError:
                    self._counts.bad += 1
                    return await self._part()
                except Misused as misused:
                    self._counts.bad += 1
                    self._http.close_connection(misused.code)
                    return await self._part()
                await self.flush()
                if self._frames.has_goodbye:
                    self._let_go()
                data = await self._reader.read(CHUNK)
        return None

    async def _part(self) -> None:
        """Say why it ends, if the client reads it."""
        async with asyncio.timeout(TO_LEAVE_S):
            await self.flush()

    async def _leave(self) -> None:
        """The server ends: new streams are refused, as for another; those that are open come to their end. GOAWAY comes
        behind the last of them, since clients that are built upon h2 read nothing more behind it.
        """
        await self.way.closed.wait()
        self._let_go()

    def _let_go(self) -> None:
        """Take no more streams. So it is, too, where the client says that it opens no more."""
        if self._leaving is None:
            self._leaving = self._last
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._leaving is not None and not self._tasks and self._speaks:
            self._speaks = False
            self._http.close_connection(last_stream_id=self._leaving)
            self._writer.write(self._http.data_to_send())
            self._writer.close()

    # --- what comes ----------------------------------------------------------------------------------------------

    def _see(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._begin(event)
            case h2.events.DataReceived():
                self._feed(event)
            case h2.events.TrailersReceived():
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].end(event.headers or ())
            case h2.events.StreamEnded():
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].end()
            case h2.events.StreamReset():
                self._spend()
                if event.stream_id in self._tasks:
                    self._counts.resets += 1
                    self._tasks[event.stream_id].cancel()
            case h2.events.WindowUpdated() if event.stream_id:
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].waits.set()
            case h2.events.WindowUpdated():
                self._wake()
            case h2.events.RemoteSettingsChanged():
                self._spend()
                self._wake()
            case h2.events.PingReceived() | h2.events.PriorityUpdated():
                self._spend()
            case h2.events.ConnectionTerminated():  # for an error: what it has it does not wait for
                raise ConnectionResetError

    def _begin(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id
        assert number is not None
        self._last = max(self._last, number)
        if self._leaving is not None and number > self._leaving:
            self._http.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        stream = Stream(self, number)
        if event.stream_ended is not None:
            stream.end()
        self._counts.requests += 1
        self._counts.streams += 1
        self._streams[number] = stream
        task = self._tasks[number] = asyncio.ensure_future(self._run(stream, event.headers or []))
        task.add_done_callback(lambda _: self._over(number))
        self._wait()

    async def _run(self, stream: Stream, head: Headers) -> None:
        try:
            if not await stream.run(head):
                self._counts.broken += 1
        except (OSError, h2.exceptions.ProtocolError):  # the client has gone, or what it said last ends it all
            self._writer.transport.abort()

    def _over(self, number: int) -> None:
        """What has come of its body and was not taken makes room for others on this connection."""
        stream = self._streams.pop(number)
        del self._tasks[number]
        self._counts.streams -= 1
        if stream.unread and self._speaks:
            self._http.increment_flow_control_window(stream.unread)
            self._writer.write(self._http.data_to_send())
        self._wait()
        self._close_if_over()

    def _feed(self, event: h2.events.DataReceived) -> None:
        size = event.flow_controlled_length or 0
        stream = self._streams.get(event.stream_id or 0)
        if not event.data and event.stream_ended is None:
            self._spend()
        if stream is not None:
            stream.feed(event.data or b"", size)
        elif size:
            self._http.increment_flow_control_window(size)

    def _wake(self) -> None:
        for stream in self._streams.values():
            stream.waits.set()

    def _wait(self) -> None:
        """Without streams for no longer than IDLE_S."""
        if self._speaks and self._patience is not None and not self._patience.expired():
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(None if self._streams else now + IDLE_S)

    def _spend(self) -> None:
        now = time.monotonic()
        self._allowance = min(ALLOWANCE, self._allowance + (now - self._spent_at) * A_SECOND) - 1
        self._spent_at = now
        if self._allowance < 0:
            raise Misused(ErrorCodes.ENHANCE_YOUR_CALM)

    # --- what streams send ---------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write what is to be written; who reads slowly is waited for."""
        self._writer.write(self._http.data_to_send())
        await self._writer.drain()

    async def send_headers(self, stream: int, headers: Headers, end: bool = False) -> None:
        self._http.send_headers(stream, headers, end_stream=end)
        await self.flush()

    async def send_data(self, stream: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            room = min(self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size)
            if room <= 0:
                waits = self._streams[stream].waits
                waits.clear()
                async with asyncio.timeout(STALL_S):
                    await waits.wait()
                continue
            self._http.send_data(stream, bytes(left[:room]))
            left = left[room:]
            await self.flush()

    async def end(self, stream: int) -> None:
        self._http.end_stream(stream)
        await self.flush()

    async def reset(self, stream: int, code: ErrorCodes) -> None:
        self._http.reset_stream(stream, code)
        await self.flush()

    async def taken(self, stream: int, size: int) -> None:
        if size:
            self._http.acknowledge_received_data(size, stream)
            await self.flush()
