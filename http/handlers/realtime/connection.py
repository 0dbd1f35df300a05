"""One realtime connection: each of its client's events is handled, and what is generated is told as it comes.

What an event changes is written down whole before anything is told of it (`settle`), so that another process goes on
where this one stopped: behind the last event that was heeded, with the texts that were not told. Sounds that are not
committed are not written down: they are read again from what the client has sent (`_replay`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import WSCloseCode, web

from actorserve.actors.accounts.account import Account

from ...errors import ApiError, overloaded
from ...generation.choice import read_state
from ...generation.fields.decoding import decode
from ...generation.fields.depth import check_depth
from ...middleware.context import CLIENT
from ...realtime.audio import SoundBudget
from ...realtime.events import error_event, told
from ...realtime.fields import EventHead, Object
from ...realtime.session import Session
from ...transport.resume import LeftSession, record_of
from ...transport.websocket import WebSocketChannel, frame
from ..generate import Generator
from ..sockets import ENDING, Teller, account_of, counted, end_of
from .client_events import ClientEvents
from .generation import Generation, Generations

MESSAGE = "message"  # as it is called where it cannot be read
FAR = 1 << 17  # bytes that a client has sent since something was written down


class RealtimeConnection(Teller[Generation]):
    """Of one client."""

    def __init__(
        self,
        request: web.Request,
        generator: Generator,
        channel: WebSocketChannel,
        session: Session,
        begun: Callable[[], None],
        sounds: SoundBudget,
    ) -> None:
        """`begun` is called with each answer that is begun; `sounds`: what those of all sessions may take."""
        super().__init__(channel)
        self._request, self._begun = request, begun
        self.settings, self.sounds = generator.settings, sounds
        self.session = session
        self.makes = Generations(request, generator)
        self._record = record = record_of(request)
        self.upgraded = record.upgraded if record is not None else None
        self._at = 0  # so much of that is heeded ...
        self._came = 0  # ... and the message that is being heeded ends here
        self._kept = 0  # a successor begins to read there
        self._settled = 0  # so much had come when that was written down
        self.free = asyncio.Event()  # nothing is generated
        self.free.set()
        self._closing: asyncio.Task[None] | None = None
        self._drains = False
        self._is_ready = False  # what was left of it goes on, or its client was greeted
        self._events = ClientEvents(self)

    # --- from the first message to the last --------------------------------------------------------------------------

    async def run(self, left: LeftSession | None, given: bytes = b"") -> None:
        """`left`: what a predecessor has left of it; `given`: how it begins, as JSON of SessionFields."""
        try:
            if left is None:
                self._at = self._came = self.upgraded.begin() if self.upgraded is not None else 0
                wrong = await self._events.begin(given) if given else []
                begun = {"type": "session.created", **self.session.named(), "session": self.session.told()}
                self.settle([begun, *wrong])
            else:
                await self._go_on(left)
            self._is_ready = True
            self.drain_if_asked()
            while (raw := await self._receive()) is not None:
                await self._handle(raw)
        finally:
            for task in (self._draining, self._closing):
                if task is not None:
                    task.cancel()
            self._events.buffer.release()
            if self.now is not None:
                self.makes.release(self.now)

    async def _receive(self) -> bytes | None:
        """The next message. Who says nothing for too long, while nothing is said to it, is told so, and closed."""
        while True:
            if self._channel.is_full:
                await self._channel.drained()
            try:
                raw = await self._channel.receive(self.settings.realtime_idle_s)
            except TimeoutError:
                if self.now is None:
                    text = f"Nothing came or went for {self.settings.realtime_idle_s:g} s (--realtime-idle-timeout)."
                    self.settle([error_event(ApiError(408, text, None, "session_expired"), None)])
                    await self._channel.close(WSCloseCode.OK, text)
                    return None
                continue
            if raw is not None and self.upgraded is not None:
                self._came = self.upgraded.end_of_message()
            return raw

    def heeded(self) -> None:
        """All of the last message: who goes on begins behind it."""
        self._at = self._came

    def committed(self) -> None:
        """The last message is a commit, and was not refused."""
        self.session.committed = self._came

    def emptied(self) -> None:
        """With the last message the buffer was emptied, which its client did not ask for."""
        self.session.emptied = self._came

    async def _handle(self, raw: bytes) -> None:
        event_id = None
        try:
            head = decode(EventHead, check_depth(raw, MESSAGE), whole=MESSAGE)
            event_id = head.event_id
            events = await self._events.heed(head.type, raw)
        except ApiError as error:
            events = [error_event(error, event_id)]
        self.heeded()
        if events or self._came - self._settled > FAR:
            self.settle(events)

    # --- what is written down ----------------------------------------------------------------------------------------

    def settle(self, events: Sequence[Object], begins: bool = False, ends: bool = False) -> None:
        """Write down how the session is, and then tell of it. `begins`, `ends`: so does what is generated."""
        session, record = self.session, self._record
        frames = b"".join(map(frame, told(events, session.beta, session.plain)))
        if record is not None and self.upgraded is not None:
            session.heard, self._kept = self._events.heard, self._kept_from()
            self._settled = self._came
            self.upgraded.keep(msgspec.msgpack.encode(session), frames, self._kept, self._at)
            if ends:
                record.forget()
            if begins and session.active is not None:
                record.stream(session.active.refs, session.active.seed, session.active.created)
        self._channel.write_frames(frames)

    def _kept_from(self) -> int:
        """Of what the client has sent, all from here on may be wanted again; what was let go of is not there any more.

        Turns are looked for from where the buffer begins, so that nothing else may count with them.
        """
        places = [self._at]
        if (place := self._events.buffer.place) is not None:
            places.append(place)
        now = self.now
        if now is not None and now.active.sound_from is not None and not now.job.started.done():
            places.append(now.active.sound_from)
        return max(self._kept, min(places))

    async def _go_on(self, left: LeftSession) -> None:
        """With a predecessor's session."""
        assert self._record is not None
        self.session = msgspec.msgpack.decode(left.state, type=Session)
        self._events.listen()
        before, self._at = self._record.predecessor, left.start
        self._kept, self._settled = left.start, left.end
        self._record.go_on()
        self._channel.write_frames(left.frames)
        sound = await self._replay(left.end)
        active = self.session.active
        if active is None:
            return
        same = before is not None and before.refs == active.refs
        states = before.states if before is not None and same else [0] * len(active.refs)
        now = self.makes.again(self.session, active, sound)
        for choice, state in zip(now.job.choices, states, strict=True):
            choice.skip(*read_state(state)[:2])
        refs = active.refs if self.makes.has(active.refs) else None
        try:
            await self.makes.begin(now, self.account(), refs)
        except ApiError as error:
            self.finish(now, error)
        else:
            self.under_way(now, [], begins=refs is None or not same)

    async def _replay(self, end: int) -> bytes:
        """Heed once more what a predecessor had heeded of sounds; the one that was committed last. Commits that were
        refused have left the buffer as it was.
        """
        sound = b""
        while self._at < end and (raw := await self._receive()) is not None:
            self.heeded()
            with contextlib.suppress(ApiError):  # it was told then
                match decode(EventHead, raw).type:
                    case "input_audio_buffer.append":
                        self._events.add_sound(raw)
                        if self._events.turns is not None:
                            self._events.turns.catch_up()
                    case "input_audio_buffer.clear":
                        self._events.buffer.clear()
                    case "input_audio_buffer.commit" if self._was_committed(raw):
                        sound = self._events.buffer.take()
            if self.session.emptied == self._at:
                self._events.buffer.clear()
        return sound

    def _was_committed(self, raw: bytes) -> bool:
        """By this message, which is the last that was heeded."""
        return self.session.committed in (self._at, -1) and self._events.is_end_of_sound(raw)

    # --- what is generated -------------------------------------------------------------------------------------------

    def under_way(self, now: Generation, first: Sequence[Object], begins: bool = True) -> None:
        """It is being generated. `first`: what is told before all of it."""
        if begins:
            self._begun()
            self.session.answers += 1
        now.active.refs = now.job.refs
        self.now, self.session.active = now, now.active
        self.free.clear()
        self._events.await_turn(False)
        if begins:
            self.settle(first, begins=True)
        self.listen(now)

    def tell(self, now: Generation) -> None:
        for choice in now.told_in_order():
            texts = told(now.writer.take(choice), self.session.beta, self.session.plain)
            if texts:
                if self._record is not None:
                    self._record.note(choice.index, choice.state)
                self._channel.write(texts)
        if now.job.done.done():
            self.finish(now, end_of(now.job))

    def finish(self, now: Generation, error: ApiError | None = None, cancelled: str = "") -> None:
        """The end of it, which is told. `cancelled`: by what."""
        events = now.end(error, cancelled)
        if now.items and not now.active.apart:
            self.session.items += now.items
        self.session.active, self.now = None, None
        self._events.await_turn(True)
        self.settle(events, ends=True)
        self.makes.release(now)
        self.free.set()
        self.drain_if_asked()

    def account(self) -> Account | None:
        """Whose key it is, as long as that is one."""
        return account_of(self._request, self.settings)

    def summary(self) -> str:
        """For the log, at its end."""
        session, seconds = self.session, max(0.0, time.time() - self.session.created)
        client, code = self._request[CLIENT], self._channel.response.close_code
        who = f"{client} " if client else ""
        text = f"session {session.id}: {who}{session.kind} of {session.model}; {counted(session.answers, 'answer')}"
        items = counted(len(session.items), "item")
        return f"{text}, {items}, {seconds:.1f} s, closed with {code or 'no code'}"

    # --- the end of the server ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin nothing any more, and close when nothing is generated."""
        self._drains = True
        self.drain_if_asked()

    def drain_if_asked(self) -> None:
        if self._drains and self._is_ready and self.now is None and self._closing is None:
            goodbye = self._channel.close(WSCloseCode.GOING_AWAY, ENDING)
            self._closing = asyncio.get_running_loop().create_task(goodbye)

    def check_free(self) -> None:
        if self._drains:
            raise overloaded(ENDING)
        if self.now is not None:
            text = f"{self.now.active.id} is being generated: wait for its response.done, or send response.cancel."
            raise ApiError(400, text, None, "conversation_already_has_active_response")
