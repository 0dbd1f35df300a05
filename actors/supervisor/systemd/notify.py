"""The service manager's socket (sd_notify(3)), and how often it wants to hear that all is well.

The variables are taken out of the environment, so that no actor speaks for the service.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

MICROSECONDS = 1_000_000


class Manager:
    """Where to, for one service. Without an address nobody is told anything."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """`address` as in NOTIFY_SOCKET: a path, or @ and an abstract name."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s  # the manager ends the service after so long a silence; 0: never

    @property
    def listens(self) -> bool:
        """Is there one?"""
        return bool(self._address)

    def tell(self, **fields: object) -> None:
        """`READY=1` and the like, in one datagram; OSError if it does not reach the manager. It never waits."""
        if not self._address:
            return
        text = "".join(f"{name}={str(value).replace(chr(10), ' ')}\n" for name, value in fields.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(text.encode(), self._address)


def find_manager(environ: MutableMapping[str, str]) -> Manager:
    """The manager that has started this process, if one has."""
    address = environ.pop("NOTIFY_SOCKET", "")
    period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    mine = address and period.isdecimal() and pid in ("", str(os.getpid()))
    return Manager(address, int(period) / MICROSECONDS if mine else 0.0)
