"""Ask a supervisor to do something, on its control socket. It must be alive for that, unlike for a look."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from ..description import socket_name
from .attach import Found

CONNECT_S = 5.0


class AskError(Exception):
    """The supervisor refuses, or does not answer; the message says why."""


class _Answer(msgspec.Struct):
    result: Any = None
    error: str | None = None


def ask(server: Found, verb: str, arguments: dict[str, Any] | None = None, timeout: float = 10.0) -> Any:
    """The result of one verb; `timeout` is what the answer may take."""
    request = msgspec.json.encode({"verb": verb, "arguments": arguments or {}}) + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_S)
        try:
            connection.connect("\0" + socket_name(server.uid, server.port, server.pid))
            connection.sendall(request)
            connection.settimeout(timeout)
            line = connection.makefile("rb").readline()
        except TimeoutError:
            raise AskError(f"the supervisor on {server} does not answer {verb!r} within {timeout:g} s") from None
        except OSError as error:
            raise AskError(f"the supervisor on {server} cannot be asked: {error.strerror}") from None
    if not line:
        raise AskError(f"the supervisor on {server} has closed the connection")
    answer = msgspec.json.decode(line, type=_Answer)
    if answer.error is not None:
        raise AskError(answer.error)
    return answer.result
