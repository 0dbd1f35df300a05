"""Where connections come from: the listeners, and as asks of a relay or an actor, for which they are made (inner.py).

Nobody is accepted unless some frontend takes connections: until then the kernel keeps the queue, also while no
descriptor is left for another one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from .admission import client_of
from .descriptors import PAUSE_S, is_scarce
from .inner import InnerConnection, InnerDoor

ACCEPTS = 64  # connections that are taken at one wake-up
log = logging.getLogger("connections")


class Acceptor:
    """`come` is given each connection and the client whose it is; `again` is called when a pause is over."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        come: Callable[[socket.socket, str], None],
        again: Callable[[], None],
    ) -> None:
        self._listeners = list(listeners)
        self._come, self._again = come, again
        self._inner: dict[str, InnerDoor] = {}  # by who asks for connections
        self._is_paused = self._is_stopped = False
        self.is_open = False

    def open_if(self, wanted: bool) -> None:
        """Accept, or leave all to the kernel's queue."""
        wanted = wanted and not (self._is_paused or self._is_stopped)
        if wanted == self.is_open:
            return
        self.is_open = wanted
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if wanted:
                loop.add_reader(listener, self._accept, listener)
            else:
                loop.remove_reader(listener)
        for door in self._inner.values():
            door.hear(wanted)

    def open_inside(self, name: str) -> socket.socket:
        """For a new life of a relay, or of an actor that is a client: by what it asks for connections, to be passed on
        and then closed here. Its predecessor's is closed.
        """
        if name in self._inner:
            self._inner[name].close()
        self._inner[name], theirs = InnerDoor.open(self._come_inside)
        if self._is_stopped:
            self._inner[name].close()
        self._inner[name].hear(self.is_open)
        return theirs

    def _come_inside(self, connection: InnerConnection, client: str) -> None:
        self._come(connection, client_of(client))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_scarce(error):  # of the network, or by a firewall: that one is gone, and others may come
                    log.error("a connection cannot be accepted: %s", error)
                self._pause()
                return
            connection.setblocking(False)
            self._come(connection, client_of(address[0].partition("%")[0]))

    def _pause(self) -> None:
        """Whoever waits in the kernel's queue is taken when there may be a descriptor again."""
        self.open_if(False)
        self._is_paused = True

        def go_on() -> None:
            self._is_paused = False
            self._again()

        asyncio.get_running_loop().call_later(PAUSE_S, go_on)

    def stop(self) -> None:
        """Take no more: whoever comes now is refused by the kernel."""
        self.open_if(False)
        self._is_stopped = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for door in self._inner.values():
            door.close()
        self._inner.clear()
