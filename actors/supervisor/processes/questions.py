"""What one life of a template process is asked through its socket, and its answers: one each, in order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...protocol.sockets.prefork_wire import ANSWER_BYTES, PING, read_answer

ANSWER_S = 3.0  # what it gets once its imports are done; a fork takes milliseconds


class Question(NamedTuple):
    """What is not answered yet."""

    in_s: float  # that it gets
    answered: Callable[[int | None], None]
    by_imports: bool  # the answer says that all imports are done


class Questions:
    """The supervisor's end of the socket."""

    def __init__(self, control: socket.socket, heard: Callable[[], None], lost: Callable[[], None]) -> None:
        """`heard` is called with each answer, before whoever asked has it; `lost` when the process has died."""
        control.setblocking(False)
        self._control, self._heard, self._lost = control, heard, lost
        self._waiting: deque[Question] = deque()
        self.is_up = False  # it has done its imports
        self.silent_s = 0.0  # for how long, by the supervisor's looks
        loop = asyncio.get_running_loop()
        loop.add_reader(control.fileno(), self._receive)
        self._first_ping = loop.call_soon(self.ping)  # behind what need not wait for its imports

    @property
    def first(self) -> Question | None:
        """What is to be answered next."""
        return self._waiting[0] if self._waiting else None

    def ask(self, message: bytes, fds: Sequence[int], question: Question) -> None:
        """With these descriptors."""
        try:
            socket.send_fds(self._control, [message], fds)
        except OSError:  # it is dead, and that has not been seen yet
            asyncio.get_running_loop().call_soon(question.answered, None)
            return
        if not self._waiting:
            self.silent_s = 0.0
        self._waiting.append(question)

    def ping(self) -> None:
        """Is it there?"""
        self.ask(PING, [], Question(ANSWER_S, lambda answer: None, True))

    def _receive(self) -> None:
        try:
            answer = self._control.recv(ANSWER_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return  # one that died with questions before it resets the socket: its last answers come behind that
        if not answer:
            self._lost()
            return
        self.silent_s = 0.0
        question = self._waiting.popleft()
        self.is_up = self.is_up or question.by_imports
        self._heard()
        question.answered(read_answer(answer))

    def close(self) -> list[Question]:
        """Nobody listens any more; what has no answer."""
        self._first_ping.cancel()
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        return list(self._waiting)
