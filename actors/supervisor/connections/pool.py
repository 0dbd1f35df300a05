"""Clients' connections: accepted here, handed to a frontend, and held until their end, so that none dies with it.

A connection is in the listeners' queue, or held here: at no moment does it hang on a frontend alone. Each has a number;
its frontend says when it has closed it, and only then is the number free. A frontend's successor is handed all that the
dead one had, marked as such. What is said on channels stands in protocol/sockets/connection_handover.py. Who moves a
connection to another has let go of it before it says so, and who is handed it finds in the records what is to be done.
It is in one frontend's set at any moment; that frontend's life of today, or the next one, is handed it.
How they come is acceptor.py's. Nothing is read from a client here, and nothing is written but a refusal when there are
too many: admission.py says who gets one then, and waits for it here for a moment.

A frontend without a descriptor for a connection gives it back. One of which nobody has read goes to another, and no
more come while another takes them; one that was gone on with is its own, and is tried again. Who is in want for too
long is replaced (`in_want_s`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Sequence

from ...protocol.sockets.connection_handover import (
    CLOSED,
    GIVEN_BYTES,
    NEW,
    NOT_TAKEN,
    PLAIN,
    RESERVED,
    RESUMED,
    close_idle,
    hand_over,
    owner,
    read_given,
    reset_when_closed,
)
from .acceptor import Acceptor
from .admission import Admission
from .channel import Channel
from .descriptors import PAUSE_S, is_scarce
from .inner import InnerConnection
from .newcomers import Newcomers

log = logging.getLogger("connections")


class Connections:
    """All connections of the server."""

    def __init__(self, listeners: Sequence[socket.socket], frontends: Sequence[str], admission: Admission) -> None:
        self._channels = {name: Channel() for name in frontends}
        self._held: dict[int, socket.socket] = {}
        self._admission = admission
        self._newcomers = Newcomers(admission, self)
        self.acceptor = Acceptor(listeners, self._newcomers.come, self._go_on)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # --- frontends come and go -----------------------------------------------------------------------------------

    def open_channel(self, name: str) -> socket.socket:
        """A channel for a new life of a frontend; its end is to be passed on and then closed here."""
        self.lost(name)
        channel = self._channels[name]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        channel.socket = ours
        channel.forget_want()
        channel.unsent.extend((number, self._flags(number, RESUMED)) for number in sorted(channel.numbers))
        self._loop.add_reader(ours, self._hear, channel)
        self._send(channel)
        return theirs

    def up(self, name: str) -> None:
        """This frontend takes connections."""
        self._channels[name].up = True
        self._gate()
        self._newcomers.settle()

    def pass_by(self, name: str) -> None:
        """This frontend is handed no new ones from now on."""
        self._channels[name].up = False
        self._gate()

    def in_want_s(self, name: str) -> float:
        """For how long this frontend has had no descriptors for connections; 0 if it has some."""
        channel, now = self._channels[name], self._loop.time()
        return now - channel.wants_since if channel.is_in_want(now) else 0.0

    def numbers(self, name: str) -> list[int]:
        """The connections of this frontend."""
        return sorted(self._channels[name].numbers)

    def lost(self, name: str) -> None:
        """This frontend has died, or takes no more; what it had stays held."""
        channel = self._channels[name]
        channel.up = False
        if channel.socket is not None:
            self._hear(channel)  # what it said before it died
            self._loop.remove_reader(channel.socket)
            self._loop.remove_writer(channel.socket)
            channel.socket.close()
            channel.socket = None
        if channel.again is not None:
            channel.again.cancel()
            channel.again = None
        channel.unsent.clear()
        self._gate()

    def stop(self) -> None:
        """Take no more: whoever comes now is refused by the kernel."""
        self.acceptor.stop()
        self._newcomers.close()

    def close(self) -> None:
        """The end of the server: let go of everything."""
        self.stop()
        for name in self._channels:
            self.lost(name)
        for connection in self._held.values():
            connection.close()
        self._held.clear()

    # --- connections come and go ---------------------------------------------------------------------------------

    def _gate(self) -> None:
        """Accept exactly while somebody takes what is accepted."""
        self.acceptor.open_if(any(channel.up for channel in self._channels.values()))

    def _go_on(self) -> None:
        """There may be a descriptor again."""
        self._gate()
        self._newcomers.settle()

    @property
    def accepting(self) -> bool:
        """Some frontend takes connections."""
        return self.acceptor.is_open and any(channel.up for channel in self._channels.values())

    def hold(self, number: int, connection: socket.socket) -> None:
        """It is handed over to the frontend that has least."""
        self._held[number] = connection
        self._give(number, self._least())

    def _least(self) -> Channel:
        """The one that has least, of those that can take more."""
        now = self._loop.time()
        up = [channel for channel in self._channels.values() if channel.up]
        return min(up, key=lambda one: (one.is_in_want(now), len(one.numbers)))

    def _give(self, number: int, channel: Channel, flags: int = NEW) -> None:
        """It is this frontend's from now on."""
        channel.numbers.add(number)
        flags = self._flags(number, flags)
        if channel.socket is not None:  # otherwise its successor is handed it with all others
            channel.unsent.append((number, flags))
            self._send(channel)

    def _send(self, channel: Channel) -> None:
        """Hand over what waits; the rest when there is room. What the dead are not handed, their successors are."""
        assert channel.socket is not None
        while channel.unsent and channel.again is None:
            number, flags = channel.unsent[0]
            try:
                socket.send_fds(channel.socket, [hand_over(number, flags)], [self._held[number].fileno()])
            except BlockingIOError:
                self._loop.add_writer(channel.socket, self._send, channel)
                return
            except ConnectionError:
                break
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS and not is_scarce(error):
                    raise
                self._send_later(channel)
                break
            channel.unsent.popleft()
        self._loop.remove_writer(channel.socket)

    def _send_later(self, channel: Channel) -> None:
        if channel.again is None:
            channel.again = self._loop.call_later(PAUSE_S, self._send_again, channel)

    def _send_again(self, channel: Channel) -> None:
        channel.again = None
        self._send(channel)

    def _hear(self, channel: Channel) -> None:
        """A frontend has closed some, or gives them to another."""
        assert channel.socket is not None
        while True:
            try:
                data = channel.socket.recv(GIVEN_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._loop.remove_reader(channel.socket)
                return
            for number, where in read_given(data):
                if number in channel.numbers:
                    channel.numbers.remove(number)
                    if where & NOT_TAKEN:
                        self._not_taken(channel, number, where & ~NOT_TAKEN)
                    else:
                        self._pass_on(number, where)

    def _pass_on(self, number: int, where: int) -> None:
        """It is closed here, too, which ends it for its client; or it is another frontend's from now on."""
        frontend = owner(where, len(self._channels))
        if frontend is not None:
            self._give(number, list(self._channels.values())[frontend], RESUMED)
            return
        connection = self._held.pop(number)
        if where != CLOSED:
            log.error("a connection is reset: it was to be moved to frontend %d, which does not exist", where - 1)
            reset_when_closed(connection)
        connection.close()
        self._newcomers.ended.discard(number)
        self._admission.release(number)
        self._newcomers.settle()

    def _not_taken(self, channel: Channel, number: int, flags: int) -> None:
        """The frontend had no descriptor left for it. Slots of one that was gone on with are of no use to another."""
        now = self._loop.time()
        channel.cannot_take(now)
        others = [one for one in self._channels.values() if one.up and not one.is_in_want(now)]
        if others and not flags & RESUMED:
            self._give(number, min(others, key=lambda one: len(one.numbers)), flags)
        else:
            self._send_later(channel)
            self._give(number, channel, flags)

    def end(self, number: int) -> None:
        """Its frontend sees it, and says so when it is free."""
        with contextlib.suppress(OSError):  # its client has gone
            self._held[number].shutdown(socket.SHUT_RDWR)

    def _flags(self, number: int, flags: int) -> int:
        if isinstance(self._held.get(number), InnerConnection):
            flags |= PLAIN
        return flags | RESERVED if self._admission.is_reserved(number) else flags

    # --- when there is no room -----------------------------------------------------------------------------------

    def ask_for_idle(self, client: str, count: int) -> None:
        """Frontends close connections of this client that are idle, those first that have been so for longest."""
        numbers = self._admission.ordinary.of(client)
        for channel in self._channels.values():
            own = [number for number in numbers if number in channel.numbers]
            if channel.socket is not None and own:
                with contextlib.suppress(OSError):  # its end is full, or it has died: it is asked again
                    channel.socket.send(close_idle(count, own))

    @property
    def count(self) -> int:
        """How many are held."""
        return len(self._held)
