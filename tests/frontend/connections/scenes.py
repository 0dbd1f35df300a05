"""A scene of the hand-over: the supervisor's side, two frontends, and one client, turn by turn."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from actorserve.actors.frontend.connections import pool
from actorserve.actors.supervisor.connections.admission import Admission
from actorserve.actors.supervisor.connections.pool import Connections
from actorserve.http.transport.body import CONTINUE
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

from .lives import MOST, ROOM, TEXT, Killed, Lethal, Life, Socket, one_turn

NAMES = ("frontend-0", "frontend-1")
TURNS = 2000  # after which a scene hangs
MANY = 1000  # answers
T = TypeVar("T")
recv_fds = socket.recv_fds
HEAD = re.compile(rb"HTTP/1\.1 200 OK\r\n(?:[^\r]+\r\n)*?(?:Content-Length: (\d+)|Transfer-Encoding: chunked)\r\n")
STREAMED = b"".join(b"1\r\n%c\r\n" % character for character in TEXT) + b"0\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"
ASKED = [b"one", b"move two", b"stream", b"three"]
ANSWERS = [b"one", b"move two", STREAMED, b"three"]


class Scene:
    """The supervisor's side, two frontends, and one client."""

    def __init__(self, lethal: Lethal | None = None, victim: int = 0) -> None:
        self.lethal = lethal
        self.victim = victim
        self.kills = 0
        self.loop = asyncio.new_event_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.connections = Connections([listener], NAMES, Admission(MOST))
        self.files = RequestJournal.create(MOST, ROOM), ResponseJournal.create(MOST)
        self.lives: list[Life] = []
        self.modules: dict[int, Any] = {}  # `socket`, as the life of each frontend sees it
        for index in range(len(NAMES)):
            self.lives.append(self.born(index))
        self.client = socket.create_connection(self.address)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client.setblocking(False)

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """As the supervisor does, in its loop."""

        async def inside() -> T:
            return function(*arguments)

        return self.loop.run_until_complete(inside())

    def born(self, index: int) -> Life:
        life = Life(index, self.call(self.connections.open_channel, NAMES[index]), self.files)
        self.call(self.connections.up, NAMES[index])
        self.modules[index] = watching(life)
        return life

    def reborn(self, index: int) -> None:
        self.lives[index].kill()
        self.lives[index] = self.born(index)

    def turn(self) -> None:
        """Everybody has one."""
        one_turn(self.loop)
        for index, life in enumerate(self.lives):
            pool.socket = self.modules[index]  # type: ignore[attr-defined]
            try:
                if self.lethal is not None and index == self.victim and not self.kills:
                    self.lethal.run(life.turn)
                else:
                    life.turn()
            except Killed:
                self.kills += 1
                self.reborn(index)

    def until(self, what: Callable[[], object], turns: int = TURNS) -> None:
        for _ in range(turns):
            if what():
                return
            self.turn()
        raise AssertionError("it hangs")

    def close(self) -> None:
        self.call(self.connections.close)
        for life in self.lives:
            life.kill()
        self.client.close()
        self.loop.close()
        for fd in self.files:
            os.close(fd)


def watching(life: Life) -> SimpleNamespace:
    """The module `socket` as this life sees it: each descriptor that it gets is known."""

    def receive(*arguments: Any) -> Any:
        found = recv_fds(*arguments)
        life.fds.update(found[1])
        return found

    def new(*, fileno: int) -> socket.socket:
        life.sockets.append(Socket(fileno=fileno))
        life.fds.discard(fileno)
        return life.sockets[-1]

    return SimpleNamespace(**{**vars(socket), "recv_fds": receive, "socket": new})


def request(body: bytes, more: bytes = b"") -> bytes:
    """`more`: lines of its head."""
    return b"POST / HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (more, len(body), body)


def bodies(data: bytes) -> list[bytes]:
    """Those of the whole answers at the beginning of what a client got, before each of which one interim answer may
    stand. AssertionError if there is anything else.
    """
    found = []
    while head := HEAD.match(data := data.removeprefix(CONTINUE)):
        _, end, rest = data.partition(b"\r\n\r\n")
        last = rest.find(b"0\r\n\r\n")
        size = int(head[1]) if head[1] else last + 5
        if not end or len(rest) < size or (not head[1] and last < 0):
            break
        found.append(rest[:size])
        data = rest[size:]
    assert data[:15] == b"HTTP/1.1 200 OK"[: len(data)] or CONTINUE.startswith(data)
    return found


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def sockets_beyond(before: set[str]) -> list[str]:
    """Those that are open under other descriptors: of what has been there before the collector may close some."""
    links = (Path("/proc/self/fd", fd) for fd in descriptors() - before)
    return [fd.name for fd in links if fd.is_socket()]


class Client:
    """Of one scene: what it got so far."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.data = b""
        self.over = False

    def send(self, data: bytes) -> None:
        self.scene.client.sendall(data)
        for _ in range(3):
            self.scene.turn()

    def begin(self, data: bytes) -> None:
        """Send something that is not yet a request, and wait until it was read."""
        self.send(data)
        self.scene.until(lambda: self.scene.lives[0].pool.journal.is_begun(0) and self.scene.lives[0].records())

    def has(self, answers: int) -> bool:
        """Are so many answers there, or is the connection?"""
        try:
            piece = self.scene.client.recv(1 << 16)
        except BlockingIOError:
            piece = None
        except ConnectionResetError:
            piece = b""
        self.over = self.over or piece == b""
        self.data += piece or b""
        return self.over or len(bodies(self.data)) >= answers

    def ask(self, *asked: bytes) -> list[bytes]:
        """One request after the other, each in three pieces; the answers."""
        for body in asked:
            so_far = len(bodies(self.data))
            whole = request(body)
            for piece in (whole[:20], whole[20:50], whole[50:]):
                self.send(piece)
            self.scene.until(lambda: self.has(so_far + 1))  # noqa: B023
        return bodies(self.data)

    def ask_expecting(self, *asked: bytes) -> list[bytes]:
        """One request after the other, each body only when it is asked for; the answers."""
        for body in asked:
            so_far = len(bodies(self.data))
            whole = request(body, b"Expect: 100-continue\r\n")
            before = self.data.count(CONTINUE)
            self.send(whole[: -len(body)])
            self.scene.until(lambda: self.has(MANY) or self.data.count(CONTINUE) > before)  # noqa: B023
            self.send(body)
            self.scene.until(lambda: self.has(so_far + 1))  # noqa: B023
        return bodies(self.data)


@contextmanager
def scene_of(lethal: Lethal | None = None, victim: int = 0) -> Iterator[tuple[Scene, Client]]:
    """At its end the client goes, and nothing may be left of its connection."""
    before = descriptors()
    scene = Scene(lethal, victim)
    try:
        yield scene, Client(scene)
        scene.client.close()
        scene.until(lambda: not scene.connections.count)
        assert scene.connections._admission.ordinary.free() == list(range(MOST))
        assert all(not channel.numbers and not channel.unsent for channel in scene.connections._channels.values())
    finally:
        scene.close()
    assert not sockets_beyond(before)
