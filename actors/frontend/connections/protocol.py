"""What the transport of a connection calls: where the bytes go that are read."""

from __future__ import annotations

import asyncio

from .connection import ConnectionOwner, RecordedConnection


class RecordedProtocol(asyncio.BufferedProtocol):
    """What the transport calls: says where the bytes go that are read, and passes all else on."""

    def __init__(self, connection: RecordedConnection, pool: ConnectionOwner, place: int) -> None:
        self._connection = connection
        self._pool = pool
        self._place = place
        self._buffer = pool.spare
        self._kept = False
        self.connection_made = connection.connection_made  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The room behind what has come of the request, or a place for what cannot be kept."""
        self._connection.before_reading()
        room = self._pool.journal.room(self._place)
        self._kept = room is not None
        self._buffer = self._pool.spare if room is None else room
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if self._kept:
            self._pool.journal.filled(self._place, nbytes)
        self._connection.data_received(data)
