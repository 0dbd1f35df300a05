"""--uds: the server at a Unix socket, too, for proxies and containers that share a folder with it.

Clients of it are passed on to the TCP port by a process of its own (unix_relay.py, kept by relay.py), since a stream
goes on with another frontend by the kernel's counts of what was acknowledged, which there are of TCP alone. So the
death of any actor is not seen at the socket either; that of the relay resets its connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocol.kinds import RELAY
from ..listeners import BACKLOG, ListenError
from .relay import Relay

if TYPE_CHECKING:
    from ..supervisor import Supervisor

LONGEST = 107  # bytes of a path that the kernel takes


def listen_unix(path: str, mode: int) -> socket.socket:
    """ListenError if somebody listens there, or if it is a file that is no socket. A socket of nobody is replaced."""
    if len(os.fsencode(path)) > LONGEST:
        raise ListenError(f"cannot listen on --uds {path}: a path of a socket has at most {LONGEST} bytes")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(path)
        os.chmod(path, mode)
        made.listen(BACKLOG)
    except (OSError, ListenError) as error:
        made.close()
        if isinstance(error, ListenError):
            raise
        raise ListenError(f"cannot listen on --uds {path}: {error.strerror}") from None
    return made


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"cannot listen on --uds {path}: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:  # nobody has it: whoever had is dead
            os.unlink(path)
            return
        except OSError as error:  # its queue is full, or it is another user's
            raise ListenError(f"cannot listen on --uds {path}: {error.strerror}") from None
    raise ListenError(f"cannot listen on --uds {path}: somebody listens there")


DEFAULT_MODE = 0o660


class UnixSocket(Relay):
    """The socket, and the relay that has it."""

    name = RELAY

    def __init__(self, path: str, mode: int) -> None:
        super().__init__()
        self.place = path
        self._listener = listen_unix(path, mode)
        self._inode = os.stat(path).st_ino

    def begin(self, address: tuple[str, int], supervisor: Supervisor) -> tuple[Sequence[str], list[int]]:
        fd = self._listener.fileno()
        return [str(fd), address[0], str(address[1]), str(os.getpid())], [fd]

    def close(self) -> None:
        """The file is removed, if it is still its own."""
        self._listener.close()
        super().close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.place).st_ino == self._inode:
                os.unlink(self.place)
