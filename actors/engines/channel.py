"""One connection between a server and an engine elsewhere, as either side has it (protocol/sockets/engine_wire.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from ..protocol.sockets.engine_wire import BEAT_S, MOST_BYTES, MOST_UNSENT, SILENT_S, Beat, Records, Unproven, encode


class Channel(asyncio.Protocol):
    """Records both ways. What is not read by the other side is bounded: while `is_writable` is not so, whoever has
    something to send leaves it where it is.
    """

    def __init__(
        self,
        kind: Any,
        heard: Callable[[Channel, Any], None],
        lost: Callable[[Channel, str], None],
        turn: Callable[[], None],
        made: Callable[[Channel], None] | None = None,
    ) -> None:
        """`heard` each record of that kind, `lost` once there is nobody, `turn` behind what has come at once."""
        self._records = Records(kind)
        self._heard, self._lost, self._turn, self._made = heard, lost, turn, made
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self.is_writable = self.is_open = True
        self.is_trusted = False
        self.peer, self.certificate = "", b""  # the latter in DER
        self.began = self._heard_at = self._sent_at = time.monotonic()
        self._doubted = False  # it was silent for too long at the last look: what has come since is read first
        self.way_ns = 0  # there and back, at the last Beat

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        self._transport.set_write_buffer_limits(high=MOST_UNSENT)
        self.peer = str((transport.get_extra_info("peername") or ["?"])[0])
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.certificate = tls.getpeercert(binary_form=True) or b""
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self._heard_at, self._doubted = time.monotonic(), False
        try:
            for record in self._records.feed(data):
                if not self.is_open:
                    break
                if isinstance(record, Beat):
                    self._beaten(record)
                else:
                    self._heard(self, record)
        except Unproven as error:
            self.close(str(error))
        self._turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._lost(self, self._why or str(exc or "the connection has ended"))
        self._turn()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._turn()

    # --- its owner's ---------------------------------------------------------------------------------------------

    def trust(self) -> None:
        """It is known who speaks there."""
        self._records.most, self.is_trusted = MOST_BYTES, True

    def send(self, record: Any) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(encode(record))
            self._sent_at = time.monotonic()

    def close(self, why: str, *, last: Any = None) -> None:
        """At once; `last` is still sent as far as that goes without waiting."""
        if self.is_open and self._transport is not None:
            self._why = self._why or why
            if last is not None:
                self.send(last)
                self._transport.close()
            else:
                self._transport.abort()
        self.is_open = False

    def look(self) -> None:
        """Now and then: is anybody there? And let the other side know the same of this one."""
        now = time.monotonic()
        if not self.is_open or not self.is_trusted:
            return
        if now - self._heard_at > SILENT_S and not self._doubted:
            self._doubted = True
        elif self._doubted:
            self.close(f"nothing was heard for {SILENT_S:g} s")
        elif now - self._sent_at > BEAT_S:
            self.send(Beat(time.monotonic_ns()))

    def _beaten(self, beat: Beat) -> None:
        if beat.answers_ns:
            self.way_ns = time.monotonic_ns() - beat.answers_ns
        if beat.sent_ns:
            self.send(Beat(0, beat.sent_ns))
