"""A service manager for tests: it hears what a server tells, and holds a listening socket for one after the other.

As a command (`python manager.py COMMAND …`) it is what stands between: it fetches the socket and becomes the command.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from types import TracebackType

FETCH = "TEST_MANAGER_SOCKETS"  # the abstract address at which the listening socket is fetched
FIRST_FD = 3
WAIT_S = 60.0


class FakeServiceManager:
    """`with FakeServiceManager() as manager: Server(env=manager.env)`."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """`address` as for NOTIFY_SOCKET; an abstract one if left out."""
        address = address or f"@actorserve-test-{os.getpid()}-{id(self)}"
        self.env = {"NOTIFY_SOCKET": address}
        if watchdog_s:
            self.env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self.messages: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def hear(self, timeout: float = WAIT_S) -> dict[str, str]:
        """The next message; TimeoutError if there is none."""
        self._socket.settimeout(timeout)
        lines = self._socket.recv(4096).decode().splitlines()
        self.messages.append(dict(line.split("=", 1) for line in lines))
        return self.messages[-1]

    def wait_for(self, name: str, words: str = "") -> str:
        """The value of the next field of this name that holds `words`."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if words in (value := self.hear().get(name, "\0")) and value != "\0":
                return value
        raise AssertionError(f"no {name}={words!r} in {self.messages}")

    def heard(self, name: str) -> list[str]:
        """All values of a field so far."""
        return [message[name] for message in self.messages if name in message]

    def __enter__(self) -> FakeServiceManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


class PassedSocket:
    """A listening socket that outlives servers; each fetches it with `command` before its own and `env`."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        name = f"actorserve-test-sockets-{os.getpid()}-{id(self)}"
        self.command = (sys.executable, __file__)
        self.env = {FETCH: name}
        self._fetch = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._fetch.bind(f"\0{name}")
        self._fetch.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._fetch.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                socket.send_fds(connection, [b"."], [self.listener.fileno()])

    def close(self) -> None:
        """No more servers."""
        self._fetch.shutdown(socket.SHUT_RDWR)
        self._fetch.close()
        self.listener.close()


def become(command: list[str]) -> None:
    """As systemd does: the socket is descriptor 3, and the variables name this very process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{os.environ.pop(FETCH)}")
        _, fds, _, _ = socket.recv_fds(connection, 1, 1)
    os.dup2(fds[0], FIRST_FD)
    os.set_inheritable(FIRST_FD, True)
    os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
    os.execv(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1:])
