"""The loop of an actor that lives in an asyncio event loop, as `run` in process.py is that of one that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from ..telemetry.trace_events import Kind
from .process import FULL_LANE_S, Context

BEAT_S = 0.5


class LoopTurns:
    """A turn at each wake-up and, at the latest, at each beat. Who uses it says what is done in a turn.

    A turn that cannot finish is followed by another one, of which there is never more than one to come.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop, handle: Callable[[Any], None]) -> None:
        """`handle` is given each message, which may come twice."""
        self._context, self._loop, self._handle = context, loop, handle
        self._to_come: asyncio.Handle | None = None

    def work(self) -> int:
        """What is done in a turn after its messages; returns how many answers were gone on with."""
        raise NotImplementedError

    def published(self) -> int:
        """All that was posted so far is in the lanes; if anything is done here, another turn follows."""
        return 0

    def beat(self) -> None:
        """BEAT_S have passed."""

    def start(self) -> None:
        """The first turn is now."""
        self._loop.add_reader(self._context.inbox.fileno(), self._woken)
        self._beat()

    def _woken(self) -> None:
        self._context.inbox.disarm()
        self.turn()

    def turn(self) -> None:
        """Handle what is there, publish what that caused, and sleep again if nothing is left."""
        context = self._context
        began = monotonic_ns()
        done = context.inbox.drain(self._handle)
        handled = monotonic_ns()
        answers = self.work()
        flushed = context.flush()
        if done:
            now = monotonic_ns()
            context.trace.add(now, Kind.FLUSH, now - handled, answers)
            context.trace.add(now, Kind.TURN, now - began, done)
        if self._to_come is not None:
            self._to_come.cancel()
            self._to_come = None
        if not flushed:
            self._to_come = self._loop.call_later(FULL_LANE_S, self.turn)
            return
        context.inbox.commit()
        others, asleep = self.published(), context.inbox.arm()
        if asleep and others:
            context.inbox.disarm()
        if others or not asleep:
            self._to_come = self._loop.call_soon(self.turn)

    def _beat(self) -> None:
        """The loop turns: say so; and a wake-up that got lost costs no more than this."""
        self._context.status.beat()
        self.beat()
        self._loop.call_later(BEAT_S, self._beat)
        self.turn()
