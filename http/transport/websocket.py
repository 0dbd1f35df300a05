"""A WebSocket: messages of a client, with deadlines, and texts for it.

aiohttp reads and answers what belongs to the protocol (pings, closing); texts are written here, as many as belong
together in one write, so that a connection's record has all of them or none. Nothing is compressed: what a successor
would have to know of that is nowhere but in this process. Of messages that have not come whole all connections together
take no more than of bodies (body.py), and long ones get no more time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from time import monotonic

from aiohttp import WSCloseCode, WSMsgType, web

from ..errors import ApiError
from ..middleware.context import CLOSED
from .body import BODY_S, BodyBudget, is_counted
from .sse import STALL_S, look_at

PING_S = 30.0  # between two; a client that does not answer one for half of it is gone
GOODBYE_S = 5.0  # what it gets to answer the end
SOON_S = 0.001  # for a message that may have come already
TEXT_FRAME = 0x81  # the last of its message
CLOSE_FRAME = 0x88
MOST_REASON = 123  # bytes of it in such a frame
SHORT, MEDIUM = 126, 1 << 16


def frame(text: bytes) -> bytes:
    """One whole message of a server."""
    length = len(text)
    if length < SHORT:
        return struct.pack("!BB", TEXT_FRAME, length) + text
    if length < MEDIUM:
        return struct.pack("!BBH", TEXT_FRAME, SHORT, length) + text
    return struct.pack("!BBQ", TEXT_FRAME, 127, length) + text


class _Response(web.WebSocketResponse):
    """Who answers no ping is gone, but for one who is not listened to, or who takes what stands before the ping."""

    _unsent = 0  # bytes, when that was asked last

    def _pong_not_received(self) -> None:
        request = self._req
        transport = None if request is None else request.transport
        if request is not None and transport is not None:
            unsent, before = transport.get_write_buffer_size(), self._unsent
            self._unsent = unsent
            if request.protocol._reading_paused or (unsent and unsent != before):
                self._reset_heartbeat()
                return
        super()._pong_not_received()


class WebSocketChannel:
    """Of one request."""

    def __init__(self, request: web.Request, most: int, protocols: Sequence[str], unfinished: BodyBudget) -> None:
        """`most`: bytes of a message; `unfinished`: of all that have not come whole."""
        self._request, self._protocol = request, request.protocol
        self._budget, self._held = unfinished, 0
        self._deadline: asyncio.TimerHandle | None = None  # of a long message that has not come whole
        self.most = most
        options = {"heartbeat": PING_S, "max_msg_size": most, "timeout": GOODBYE_S, "decode_text": False}
        self.response = _Response(protocols=protocols, compress=False, **options)  # type: ignore[arg-type]
        self._transport: asyncio.Transport | None = None
        self._lively_at = monotonic()  # the last message came or went, or that none did was told
        self._draining: asyncio.Task[None] | None = None  # ends when there is room again, or the connection is lost

    async def open(self) -> None:
        """Say that it is one from here on."""
        follow = getattr(self._protocol, "message_ends", None)
        incoming = None if follow is None else follow()
        await self.response.prepare(self._request)
        self._transport = self._request.transport
        if incoming is not None:
            incoming.watch(self._grow)

    def _grow(self, size: int) -> None:
        """So much has come of a message that is not whole."""
        if self.is_gone:
            return
        try:
            self._budget.grow(self._held, size)
            self._held = size
        except ApiError as error:
            self._end(WSCloseCode.TRY_AGAIN_LATER, error.message)
        if not is_counted(size):
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(BODY_S, self._too_late)

    def _too_late(self) -> None:
        """A long message has not come whole, as long as a body gets; who is not listened to gets that once more."""
        self._deadline = None
        if self.is_gone:
            return
        if self._protocol._reading_paused:
            self._deadline = asyncio.get_running_loop().call_later(BODY_S, self._too_late)
        else:
            self._end(WSCloseCode.POLICY_VIOLATION, f"The message did not come within {BODY_S:.0f} s.")

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, code: WSCloseCode, reason: str) -> None:
        """At once: nothing more is read, not even what it answers."""
        assert self._transport is not None
        text = reason.encode()[:MOST_REASON]
        self._transport.write(struct.pack("!BBH", CLOSE_FRAME, 2 + len(text), code) + text)
        self._transport.close()

    def release(self) -> None:
        """Nobody listens any more."""
        if self.response.close_code not in (None, WSCloseCode.ABNORMAL_CLOSURE):
            self._request[CLOSED] = True
        self._transport = None
        self._forget_deadline()
        self._budget.forget(self._held)
        self._held = 0

    async def receive(self, patience_s: float) -> bytes | None:
        """The next message; None: there will be none. TimeoutError where none comes or goes for so long."""
        while True:
            try:
                message = await self.response.receive(max(SOON_S, self._lively_at + patience_s - monotonic()))
            except TimeoutError:
                if monotonic() < self._lively_at + patience_s:  # something went
                    continue
                self._lively_at = monotonic()
                raise
            self._lively_at = monotonic()
            is_one = message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY
            return bytes(message.data) if is_one else None

    def write(self, texts: Iterable[bytes]) -> None:
        """All of them as one piece."""
        self.write_frames(b"".join(map(frame, texts)))

    def write_frames(self, frames: bytes) -> None:
        transport = self._transport
        if frames and transport is not None and not transport.is_closing() and not self.response.closed:
            transport.write(frames)
            self._lively_at = monotonic()

    @property
    def is_full(self) -> bool:
        """Its client is too slow for what was written."""
        return self._protocol.writing_paused and not self.is_gone

    @property
    def is_gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def drained(self) -> None:
        """There is room again, or it is gone: who has taken nothing for STALL_S is cut off."""
        transport = self._transport
        while transport is not None and self.is_full:
            draining, left = self._drain(), transport.get_write_buffer_size()
            await asyncio.wait([draining], timeout=STALL_S)
            if not draining.done() and transport.get_write_buffer_size() >= left:
                transport.abort()

    def _drain(self) -> asyncio.Task[None]:
        """The one of all who wait. aiohttp has one future for them, which is never to be cancelled: whoever waits
        next would be, too."""
        if self._draining is None or self._draining.done():
            self._draining = asyncio.get_running_loop().create_task(self._protocol._drain_helper())
            self._draining.add_done_callback(look_at)
        return self._draining

    async def close(self, code: WSCloseCode, reason: str) -> None:
        """In order."""
        if not self.is_gone:
            await self.response.close(code=code, message=reason.encode()[:MOST_REASON])
