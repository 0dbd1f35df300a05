"""Heads of requests and answers, from HTTP/2 to HTTP/1.1 and back. It knows no connection."""

from __future__ import annotations

from collections.abc import Iterable

import h11

OWN_TO_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
Headers = list[tuple[bytes, bytes]]


class BadHead(Exception):
    """It cannot be passed on; the status that its client gets."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def to_request(head: Iterable[tuple[bytes, bytes]], ends: bool, most: int) -> h11.Request:
    """What a frontend is asked. `ends`: there is no body; `most`: lines that a head may have."""
    told: dict[bytes, bytes] = {}
    lines: Headers = []
    cookies: list[bytes] = []
    for name, value in head:
        if name.startswith(b":"):
            told[name] = value
        elif name == b"cookie":  # which HTTP/2 may cut into several
            cookies.append(value)
        elif name == b"host":
            told.setdefault(b":authority", value)
        elif name != b"te":
            lines.append((name, value))
    if len(lines) > most:
        raise BadHead(431)
    if told.get(b":method") == b"CONNECT" or b":path" not in told:
        raise BadHead(501)
    lines.insert(0, (b"host", told.get(b":authority", b"")))
    if cookies:
        lines.append((b"cookie", b"; ".join(cookies)))
    if not ends and not any(name == b"content-length" for name, _ in lines):
        lines.append((b"transfer-encoding", b"chunked"))
    lines.append((b"connection", b"close"))  # a stream is a connection: its end is the other's
    try:
        return h11.Request(method=told[b":method"], target=told[b":path"], headers=lines)
    except h11.LocalProtocolError:
        raise BadHead(400) from None


def to_answer(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What a client of HTTP/2 is told of an answer."""
    own = [(name, value) for name, value in headers if name not in OWN_TO_A_CONNECTION]
    return [(b":status", str(status).encode()), *own]
