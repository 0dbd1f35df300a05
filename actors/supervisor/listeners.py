"""The listening sockets. The supervisor holds them, so that no queued connection is lost when a frontend dies.

Accepted sockets inherit the options set here, which is the only way to set them before the first byte.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any

from ..options.config import ConfigError, PassingError

BACKLOG = 1024
SEND_BUFFER = 64 << 10  # more would hide megabytes for a slow client in the kernel
GONE_MS = 30_000  # a peer that acknowledges nothing for so long has vanished
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # e.g. `localhost` names ::1 on a machine without IPv6

HINTS = {
    errno.EADDRINUSE: "; `ss -ltnp` says who does",
    errno.EACCES: "; ports below 1024 are root's, or of who has CAP_NET_BIND_SERVICE",
}


class ListenError(Exception):
    """The address cannot be listened on; the message names it."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of `host`, which may be several with commas between; port 0 picks one for all of them."""
    alone = len(addresses_of(host, port)) == 1
    listeners: list[socket.socket] = []
    try:
        for one in hosts_of(host):
            listeners += _listen_on_all(one, port, alone=alone)
            port = listeners[0].getsockname()[1]
    except ListenError:
        _close(listeners)
        raise
    return listeners


def _listen_on_all(host: str, port: int, *, alone: bool) -> list[socket.socket]:
    """On those addresses of a host that this machine has."""
    listeners: list[socket.socket] = []
    refused: OSError | None = None
    for family, address in addresses_of(host, port):
        try:
            listeners.append(_listen_on(family, address, port, alone=alone))
        except OSError as error:
            refused = error
            if error.errno not in NOT_HERE:
                break
        else:
            port = listeners[0].getsockname()[1]
    else:
        if listeners:
            return listeners
    _close(listeners)
    reason, hint = (refused.strerror, HINTS.get(refused.errno or 0, "")) if refused else ("no address", "")
    raise ListenError(f"cannot listen on {host_and_port(host, port)}: {reason}{hint}")


def _close(listeners: Sequence[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def check_free(host: str, port: int) -> None:
    """ListenError if somebody else listens there. Frontends that share a port bind it by themselves, whatever the
    others are.
    """
    for listener in listen(host, port):
        listener.close()


def hosts_of(host: str) -> list[str]:
    """Each that --host names; "" is all addresses, but not between commas."""
    return [one.strip() for one in host.split(",") if one.strip()] or [""]


def addresses_of(host: str, port: int) -> list[tuple[int, str]]:
    """(family, address) of each that `host` names; ConfigError if there is none, as before a network is there."""
    found = (place for one in hosts_of(host) for place in _places_of(one, port))
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _places_of(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        kind = PassingError if isinstance(error, socket.gaierror) else ConfigError
        raise kind(f"--host: {host} is no address ({error})") from None


def host_and_port(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def prepare(listener: socket.socket) -> None:
    """Set what every listening socket has, and passes on to those that it accepts."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
    for option, value in KEEPALIVE.items():
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener.setblocking(False)


def _listen_on(family: int, address: str, port: int, *, alone: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        prepare(listener)
        if family == socket.AF_INET6:  # `::` alone takes IPv4 too; beside 0.0.0.0 it must not
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if alone else 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
