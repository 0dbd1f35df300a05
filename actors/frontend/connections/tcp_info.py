"""What the kernel says of a connection: how many bytes were read from it and written to it, by whoever had it."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in struct tcp_info (linux/tcp.h; Linux 4.2)
TCP_INFO_BYTES = 192
NOT_TOLD = 1 << 62  # more than any connection has: nothing that stands in shared memory agrees with it


def read_so_far(connection: socket.socket) -> int:
    """Bytes that were read: those that came less those that wait."""
    came, waiting = _counts(connection, BYTES_RECEIVED, termios.FIONREAD)
    return came - waiting


def written_so_far(connection: socket.socket) -> int:
    """Bytes that the kernel was given: those that the client has, and those that wait."""
    acknowledged, waiting = _counts(connection, BYTES_ACKED, termios.TIOCOUTQ)
    return acknowledged + waiting


def _counts(connection: socket.socket, offset: int, queue: int) -> tuple[int, int]:
    """A count of tcp_info and the length of a queue, of the same moment; NOT_TOLD where the kernel does not count."""
    while True:
        before = fcntl.ioctl(connection, queue, b"\0" * 4)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if len(info) < offset + 8:
            return NOT_TOLD, 0
        if fcntl.ioctl(connection, queue, b"\0" * 4) == before:  # nothing moved between the two questions
            return int(struct.unpack_from("<Q", info, offset)[0]), int(struct.unpack("i", before)[0])
