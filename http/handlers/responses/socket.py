"""One connection of /v1/responses: its messages are answered one after the other, each by a response's events.

What a message changes is written down before anything is told of it (`_settle`), so that another process goes on where
this one stopped: with the response that was being made, and then with the messages behind it, which are read again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from aiohttp import WSCloseCode, web

from ...errors import ApiError
from ...generation.fields.depth import check_depth
from ...middleware.context import CLIENT
from ...openai.responses.socket import (
    CANCEL,
    MESSAGE,
    STEER,
    ActiveResponse,
    SocketMessage,
    SocketSession,
    cancel_of,
    error_message,
    messages_of,
    new_session,
    not_active,
    not_steered,
    read_message,
)
from ...openai.responses.store import CANCELLED
from ...settings import Settings
from ...transport.resume import LeftSession, record_of
from ...transport.websocket import WebSocketChannel, frame
from ..sockets import ENDING, Teller, counted, end_of
from .turns import Find, Turn, TurnMaker

MOST_WAITING = 16  # messages behind the one that is answered
MOST_WRONG = 16  # messages in a row that cannot be answered
FULL = "Too many messages wait for the response before them: send one behind the end of the other."
WRONG = "None of the last messages could be answered."


@dataclass
class Waiting:
    """A message that was not answered yet."""

    raw: bytes
    end: int  # of it, in what the client has sent
    cancel: SocketMessage | None = None  # if it ends what stands before it, also in another process that reads it again
    is_heeded: bool = False

    def cancels(self, now: Turn) -> bool:
        """Is this, which stands before it, to end?"""
        one = self.cancel
        return one is not None and one.stream_id in (None, now.lane) and one.response_id in (None, now.id)


class ResponseSocket(Teller[Turn]):
    """Of one client."""

    def __init__(
        self,
        request: web.Request,
        channel: WebSocketChannel,
        settings: Settings,
        find: Find,
        begun: Callable[[], None],
    ) -> None:
        """`begun` is called with each response that is begun."""
        super().__init__(channel)
        self.session = new_session(int(time.time()))
        self._request, self._settings, self._find = request, settings, find
        self._begun = begun
        self._record = record = record_of(request)
        self._upgraded = record.upgraded if record is not None else None
        self._at = 0  # so much of what the client has sent is answered
        self._messages: deque[Waiting] = deque()
        self._came = asyncio.Event()
        self._wrong = 0
        self._free = asyncio.Event()  # nothing is generated, nor is a message being read
        self._free.set()
        self._drains = False

    # --- from the first message to the last --------------------------------------------------------------------------

    async def run(self, left: LeftSession | None) -> None:
        """`left`: what a predecessor has left of it."""
        loop = asyncio.get_running_loop()
        if left is None:
            self._at = self._upgraded.begin() if self._upgraded is not None else 0
            self._settle()
        tasks = [loop.create_task(self._read()), loop.create_task(self._answer(left))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *((self._draining,) if self._draining is not None else ())):
                task.cancel()
            if self.now is not None:
                self.now.leave()

    async def _read(self) -> None:
        """All that comes. Who says nothing for too long, while nothing is said to him, is told so, and closed."""
        while True:
            try:
                raw = await self._channel.receive(self._settings.realtime_idle_s)
            except TimeoutError:
                if self._free.is_set() and not self._messages:
                    text = f"Nothing came or went for {self._settings.realtime_idle_s:g} s (--realtime-idle-timeout)."
                    return await self._end(ApiError(408, text, code="session_expired"), WSCloseCode.OK)
                continue
            if raw is None:
                return None
            end = self._upgraded.end_of_message() if self._upgraded is not None else 0
            self._messages.append(Waiting(raw, end, cancel_of(raw)))
            self._came.set()
            self._heed_cancels()
            waits = sum(len(one.raw) for one in self._messages)
            if len(self._messages) > MOST_WAITING or (len(self._messages) > 1 and waits > self._channel.most):
                return await self._end(ApiError(429, FULL, code="too_many_messages"), WSCloseCode.POLICY_VIOLATION)

    async def _answer(self, left: LeftSession | None) -> None:
        """One message after the other."""
        if left is not None:
            await self._go_on(left)
        while True:
            await self._free.wait()
            if self._drains:
                return await self._channel.close(WSCloseCode.GOING_AWAY, ENDING)
            if self._channel.is_full:
                await self._channel.drained()
                continue  # meanwhile it may have been told to drain
            if self._messages:
                message = self._messages.popleft()
                await self._begin(message)
            else:
                self._came.clear()
                await self._came.wait()
            if self._wrong > MOST_WRONG:
                return await self._end(ApiError(400, WRONG, code="too_many_errors"), WSCloseCode.POLICY_VIOLATION)

    async def _begin(self, message: Waiting) -> None:
        """Of a message that cannot be answered its client is told why."""
        lane = None
        self._free.clear()
        try:
            head = read_message(check_depth(message.raw, MESSAGE))
            lane = head.stream_id
            active = ActiveResponse(message.raw, secrets.randbits(64), int(time.time()))
            if head.type == CANCEL and not self._is_heeded(message):
                raise not_active(message.raw, head)
            turn = None if head.type in (STEER, CANCEL) else await self._maker().make(active)
        except ApiError as error:
            self._at, self._wrong = message.end, self._wrong + 1
            self._settle([error_message(error, lane)])
            self._free.set()
            return
        self._at = message.end
        if turn is None:
            self._wrong += head.type == STEER
            self._settle([not_steered(head)] if head.type == STEER else [])
            self._free.set()
        else:
            self._under_way(turn, active)

    def _maker(self) -> TurnMaker:
        return TurnMaker(self._request, self.session, self._find)

    async def _end(self, error: ApiError, code: WSCloseCode) -> None:
        """It is closed, and told why."""
        self._settle([error_message(error, None)])
        await self._channel.close(code, error.message)

    # --- what is written down ----------------------------------------------------------------------------------------

    def _settle(self, texts: Iterable[bytes] = (), begins: bool = False, ends: bool = False) -> None:
        """Write down how the connection is, and then tell of it. `begins`, `ends`: so does what is generated."""
        session, record = self.session, self._record
        frames = b"".join(map(frame, texts))
        if record is not None and self._upgraded is not None:
            self._upgraded.keep(msgspec.msgpack.encode(session), frames, self._at, self._at)
            if ends:
                record.forget()
            if begins and session.active is not None:
                record.stream(session.active.refs, session.active.seed, session.active.created)
        self._channel.write_frames(frames)

    async def _go_on(self, left: LeftSession) -> None:
        """With a predecessor's session."""
        assert self._record is not None
        self.session = msgspec.msgpack.decode(left.state, type=SocketSession)
        before, self._at = self._record.predecessor, left.start
        self._record.go_on()
        self._channel.write_frames(left.frames)
        active = self.session.active
        if active is None:
            return
        self._free.clear()
        same = before is not None and before.refs == active.refs
        state = before.states[0] if before is not None and same else 0
        try:
            turn = await self._maker().make(active, state)
        except ApiError as error:
            self.session.active = None
            self._settle([error_message(error, read_message(active.raw).stream_id)], ends=True)
            self._free.set()
        else:
            self._under_way(turn, active, begins=not same or turn.refs != active.refs)

    # --- what is generated -------------------------------------------------------------------------------------------

    def _under_way(self, turn: Turn, active: ActiveResponse, begins: bool = True) -> None:
        """It is being generated."""
        self.now, self.session.active, active.refs = turn, active, turn.refs
        self._free.clear()
        if begins:
            self.session.answers += 1
            self._begun()
            self._settle(begins=True)
        self.listen(turn)
        self._heed_cancels()

    def _heed_cancels(self) -> None:
        """What is generated ends if a message behind it says so."""
        now = self.now
        found = [one for one in self._messages if one.cancels(now)] if now is not None else []
        for one in found:
            one.is_heeded = True
        if now is not None and found:
            self.finish(now, ApiError(CANCELLED, "It was cancelled.", code="response_cancelled"))

    def _is_heeded(self, message: Waiting) -> bool:
        """Has it ended something, here or in a predecessor?"""
        return message.is_heeded or message.end in self.session.heeded

    def tell(self, now: Turn) -> None:
        if now.job.done.done():
            self.finish(now, end_of(now.job))
        elif (choice := now.job.choices[0]).finish_reason is None:  # else its end is written down first
            texts = list(messages_of(now.take(choice), now.lane))
            if texts:
                if self._record is not None:
                    self._record.note(0, now.form.state(choice))
                self._channel.write(texts)

    def finish(self, now: Turn, error: ApiError | None) -> None:
        """The end of it, which is told. What fails before anything was told of it is an error of its message. With it
        is written down which cancels have been heeded: a successor would find nothing that they could end.
        """
        if error is not None and not now.is_told:
            self._wrong += error.status != CANCELLED
            texts = [error_message(error, now.lane)]
        else:
            self._wrong = 0
            events = now.take(now.job.choices[0]) if error is None else now.form.failed(error)
            texts = list(messages_of(events, now.lane))
        self.now, self.session.active = None, None
        while self._messages and self._is_heeded(self._messages[0]):
            self._at = self._messages.popleft().end
        heeded = {*self.session.heeded, *(one.end for one in self._messages if one.is_heeded)}
        self.session.heeded = [end for end in heeded if end > self._at]
        self._settle(texts, ends=True)
        now.leave()
        self._free.set()

    # --- its end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin nothing any more, and close when nothing is generated."""
        self._drains = True
        self._came.set()

    def summary(self) -> str:
        """For the log, at its end."""
        session, seconds = self.session, max(0.0, time.time() - self.session.created)
        code = self._channel.response.close_code
        what = [self._request[CLIENT], counted(session.answers, "answer")]
        text = f"responses {session.id}: {' '.join(filter(None, what))}, {seconds:.1f} s"
        return f"{text}, closed with {code or 'no code'}"
