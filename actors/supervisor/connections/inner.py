"""Connections to frontends that are made for a relay of this server: pairs of TCP over the loopback device.

A stream goes on with another frontend by the kernel's counts of what was acknowledged, which there are of TCP alone; so
a pair of Unix sockets will not do. Both ends are made here, one of them is the relay's and the other goes the way of
any that was accepted, for the client that the relay names. Nobody else can come by this way: the listener stands for no
longer than one of them takes, and who is accepted is compared with who was to come. A frontend is told that such a
connection speaks no TLS, which the relay has taken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from ...protocol.sockets.relay_wire import ASK_BYTES, HERE, NONE_LEFT
from ..listeners import prepare

HOST = "127.0.0.1"
AT_ONCE = 8  # pairs that are made at one wake-up
TRIES = 8  # others that may come in between
MADE_S = 0.5  # what the kernel gets to connect two sockets of this machine
log = logging.getLogger("connections")


class InnerConnection(socket.socket):
    """The frontends' end of such a pair."""


def make_pair() -> tuple[socket.socket, InnerConnection]:
    """The relay's end and the frontends'. OSError if it cannot be had."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as undo:
        prepare(listener)
        listener.bind((HOST, 0))
        listener.listen(TRIES)
        relays = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        relays.settimeout(MADE_S)
        relays.connect(listener.getsockname())
        listener.settimeout(MADE_S)
        for _ in range(TRIES):
            accepted, address = listener.accept()
            if address == relays.getsockname():
                accepted.setblocking(False)
                undo.pop_all()
                return relays, InnerConnection(fileno=accepted.detach())
            accepted.close()
    raise ConnectionAbortedError(f"others connect to {HOST} in place of this process")


class InnerDoor:
    """The supervisor's end of one life of a relay. `come` is given each connection, and the client whose it is."""

    def __init__(self, channel: socket.socket, come: Callable[[InnerConnection, str], None]) -> None:
        self._channel = channel
        self._come = come
        self._hears = False
        channel.setblocking(False)

    @classmethod
    def open(cls, come: Callable[[InnerConnection, str], None]) -> tuple[InnerDoor, socket.socket]:
        """This end, and the relay's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, come), theirs

    def hear(self, wanted: bool) -> None:
        """Only while some frontend takes connections; until then the relay waits, as who connects to a port does."""
        if wanted == self._hears or self._channel.fileno() < 0:
            return
        self._hears = wanted
        if wanted:
            asyncio.get_running_loop().add_reader(self._channel, self._take)
        else:
            asyncio.get_running_loop().remove_reader(self._channel)

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                asked = self._channel.recv(ASK_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                asked = b""
            if not asked:  # the relay has died, which its life tells
                self.close()
                return
            self._answer(asked.decode("ascii", "replace"))
            if not self._hears:
                return

    def _answer(self, client: str) -> None:
        try:
            theirs, ours = make_pair()
        except OSError as error:
            self._send_none(error)
            return
        with theirs:
            try:
                socket.send_fds(self._channel, [HERE], [theirs.fileno()])
            except OSError as error:  # it has died, or the kernel takes no descriptor for now
                ours.close()
                self._send_none(error)
            else:
                self._come(ours, client)

    def _send_none(self, error: OSError) -> None:
        """A relay that has died, or does not read what it has asked for, is let go of."""
        try:
            self._channel.send(NONE_LEFT)
        except OSError:
            self.close()
        else:
            log.error("no connection for a client of HTTP/2: %s", error)

    def close(self) -> None:
        """No more; the relay sees it."""
        self.hear(False)
        self._channel.close()
