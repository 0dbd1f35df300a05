"""Server-sent events of one request, written to its transport by whoever dispatches the engine's messages.

A slow reader costs memory for its own text only: while its transport is full, text is merged, and goes out as one event
when there is room again; a reader that takes nothing for STALL_S is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web

from .answers import Envelopes, encode
from .errors import ApiError
from .jobs import Choice, Job

STALL_S = 30.0
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """The streamed answer to one request."""

    def __init__(self, request: web.Request, job: Job, envelopes: Envelopes) -> None:
        self._request = request
        self._job = job
        self._envelopes = envelopes
        self._begun: set[int] = set()
        self._waiting: dict[int, Choice] = {}  # choices with text that found the transport full
        self._resume: asyncio.Task[None] | None = None
        self._chunked = False
        self._transport: asyncio.Transport | None = None

    async def begin(self) -> web.StreamResponse:
        """Send the headers and whatever has come so far. From here on an error can only be said inside the stream."""
        response = web.StreamResponse(headers=HEADERS)
        if self._request.version >= (1, 1):
            response.enable_chunked_encoding()
            self._chunked = True
        else:
            response.force_close()
        writer = await response.prepare(self._request)
        if writer is not None:
            writer.send_headers()
        self._transport = self._request.transport
        self._write(b"".join(self._envelopes.first(choice) for choice in self._job.choices))
        self._begun.update(choice.index for choice in self._job.choices)
        self._job.listen(self)
        return response

    def update(self, choice: Choice) -> None:
        """New text, or the end, of a choice."""
        if self._is_full():
            self._waiting[choice.index] = choice
            if self._resume is None:
                self._resume = asyncio.get_running_loop().create_task(self._go_on())
            return
        self._write(self._event(choice))

    def _event(self, choice: Choice) -> bytes:
        text = choice.take()
        if choice.finish_reason is None:
            return self._envelopes.text(choice, text) if text else b""
        if choice.ended:
            return b""
        choice.ended = True
        return self._envelopes.last(choice, text)

    async def end(self, response: web.StreamResponse) -> None:
        """Wait for the end of the job, say what there is to say, and close the body."""
        try:
            await asyncio.shield(self._job.done)
            last = self._envelopes.closing()
        except ApiError as error:
            last = b"data: " + encode(error.body()) + b"\n\ndata: [DONE]\n\n"
        if self._resume is not None:
            await self._resume
        self._write(last)
        await response.write_eof()

    def close(self) -> None:
        """The handler ends, in whatever way."""
        self._job.listener = None
        if self._resume is not None:
            self._resume.cancel()

    def _is_full(self) -> bool:
        return bool(self._waiting) or self._request.protocol.writing_paused

    async def _go_on(self) -> None:
        """Wait for room, then write what was merged meanwhile; cut off a reader that takes nothing."""
        while self._waiting:
            try:
                async with asyncio.timeout(STALL_S):
                    await self._request.protocol._drain_helper()
            except TimeoutError:
                self._abort()
                break
            except ConnectionError:  # it has gone: the handler is being cancelled
                break
            waiting, self._waiting = list(self._waiting.values()), {}
            self._write_all(self._event(choice) for choice in waiting)
        self._waiting.clear()
        self._resume = None

    def _write_all(self, events: Iterable[bytes]) -> None:
        self._write(b"".join(events))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        transport.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
