"""What comes of turns that the server finds in a client's sound (realtime/turns.py): each is committed where it ends.

A message may have the end of a turn, or of several, in its middle. What is told of one is written down with where the
buffer begins behind it, while the message itself is not heeded yet: a successor heeds it again, from there on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import ApiError
from ...realtime.events import error_event, rate_limits
from ...realtime.fields import Object, ResponseFields
from ...realtime.response_events import BY_TURN
from ...realtime.session import TRANSCRIPTION
from ...realtime.turns import Idle, Turn, TurnBuffer, idle_event, turn_event

if TYPE_CHECKING:
    from .client_events import ClientEvents
    from .connection import RealtimeConnection


class TurnEvents:
    """Of one message."""

    def __init__(self, link: RealtimeConnection, events: ClientEvents, turns: TurnBuffer) -> None:
        self._link, self._events, self._turns = link, events, turns

    async def heed(self) -> list[Object]:
        """All turns that begin or end with it."""
        turns = self._turns
        while (turn := turns.look()) is not None:
            if isinstance(turn, Idle):
                await self._idles(turn)
            elif turn.begins:
                self._begins(turn)
            else:
                await self._ends(turn)
        turns.trim()
        return []

    def _begins(self, turn: Turn) -> None:
        """A predecessor may have told it."""
        heard = self._turns.heard
        if heard.item is not None:
            return
        heard.item = self._link.session.new_item_id()
        self._link.settle([turn_event(turn, heard.item)])
        now = self._link.now
        if now is not None and not now.active.windows and self._turns.given.interrupt_response:
            self._link.finish(now, cancelled=BY_TURN)

    async def _ends(self, turn: Turn) -> None:
        name = self._turns.heard.item or self._link.session.new_item_id()
        told, samples = [turn_event(turn, name)], self._turns.turn()
        try:
            await (self._write_down if self._link.session.kind == TRANSCRIPTION else self._converse)(
                name, samples, told
            )
        except ApiError as error:
            self._turns.over()
            self._link.settle([*told, error_event(error, None)])

    async def _write_down(self, name: str, samples: bytes, told: list[Object]) -> None:
        """Sounds are written down one after the other. Its own is not needed any more once that has begun."""
        await self._link.free.wait()
        self._link.check_free()
        now = await self._events.hear(name, samples, None)
        try:
            await asyncio.shield(now.job.started)
        except BaseException:  # also where its client has gone: nobody else knows of it yet
            self._link.makes.release(now)
            raise
        self._turns.over()
        self._link.under_way(now, [*told, *self._events.committed(name, now)])

    async def _converse(self, name: str, samples: bytes, told: list[Object]) -> None:
        """It is an item of the conversation, and is answered if nothing else is."""
        events = [*told, *self._events.insert(name, samples)]
        self._turns.over()
        if not self._turns.given.create_response or self._link.now is not None:
            self._link.settle(events)
        else:
            await self._answer(events)

    async def _idles(self, idle: Idle) -> None:
        """What was not said is an item, too, and the model goes on by itself."""
        name = self._link.session.new_item_id()
        events = [idle_event(idle, name)]
        try:
            events += self._events.insert(name, self._turns.silence())
        except ApiError as error:
            self._link.settle([*events, error_event(error, None)])
        else:
            await self._answer(events)

    async def _answer(self, events: list[Object]) -> None:
        """Begin a response behind these."""
        try:
            self._link.check_free()
            now = await self._events.answer(ResponseFields())
        except ApiError as error:
            self._link.settle([*events, error_event(error, None)])
        else:
            self._link.under_way(now, [*events, *now.first(), *rate_limits(now.job.headers)])
