"""The loop of an actor that lives in an asyncio event loop, as `run` in process.py is that of one that blocks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from actorserve.shm.board.board import ActorState

from ..telemetry.trace_events import EventKind
from .dump import write_dump
from .process import FULL_LANE_S, Context

BEAT_S = 0.5


class LoopActor:
    """An actor that lives in an event loop: what it does in a turn."""

    def handle(self, message: Any) -> None:
        """One message; it may come twice."""
        raise NotImplementedError(f"{type(self).__name__} handles no message")

    def do_work(self) -> int:
        """What is done in a turn after its messages; returns how many answers were gone on with."""
        return 0

    def published(self) -> int:
        """All that was posted so far is in the lanes; if anything is done here, another turn follows."""
        return 0

    def beat(self) -> None:
        """BEAT_S have passed."""

    async def shut_down(self) -> None:
        """It was told to end, and takes no more turns."""


def run_loop(context: Context, actor: LoopActor, opened: Callable[[LoopTurns], None]) -> None:
    """The life of an actor that ends when it is told to: as `run` of one that blocks. `opened`: the loop is there.

    An exception in any of its callbacks ends the process at once, before anything else is committed.
    """

    async def live() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(partial(_fail, context))
        loop.add_signal_handler(signal.SIGTERM, over.set)
        turns = LoopTurns(context, loop, actor)
        opened(turns)
        context.set_state(ActorState.READY)
        turns.start()
        if not context.stopping:  # since before it could hear
            await over.wait()
        turns.turn()
        await actor.shut_down()

    import uvloop

    uvloop.run(live())


def _fail(context: Context, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    error = about.get("exception")
    loop.default_exception_handler(about)
    if isinstance(error, Exception):
        write_dump(context, error, {})
    os._exit(1)


def raise_error(task: asyncio.Task[Any]) -> None:
    """For a task that nobody waits for: the loop's handler has its error at once, and not when it is forgotten."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


class LoopTurns:
    """A turn at each wake-up and, at the latest, at each beat.

    A turn that cannot finish is followed by another one, of which there is never more than one to come.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop, actor: LoopActor) -> None:
        self._context, self._loop, self._actor = context, loop, actor
        self._to_come: asyncio.Handle | None = None

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
        done = context.inbox.drain(self._actor.handle)
        handled = monotonic_ns()
        context.profile.look()
        answers = self._actor.do_work()
        flushed = context.flush()
        if done:
            now = monotonic_ns()
            context.trace.add(now, EventKind.FLUSH, now - handled, answers)
            context.trace.add(now, EventKind.TURN, now - began, done)
        if self._to_come is not None:
            self._to_come.cancel()
            self._to_come = None
        if not flushed:
            self._to_come = self._loop.call_later(FULL_LANE_S, self.turn)
            return
        context.inbox.commit()
        others, asleep = self._actor.published(), context.inbox.arm()
        if asleep and others:
            context.inbox.disarm()
        if others or not asleep:
            self._to_come = self._loop.call_soon(self.turn)

    def _beat(self) -> None:
        """The loop turns: say so; and a wake-up that got lost costs no more than this."""
        self._context.status.beat()
        self._actor.beat()
        self._loop.call_later(BEAT_S, self._beat)
        self.turn()
