"""Ask a supervisor to do something, on its control socket. It must be alive for that, unlike for a look."""

from __future__ import annotations

import socket
import time
from struct import Struct

import msgspec

from ..protocol.sockets.control_wire import (
    ANSWER_BYTES,
    Arguments,
    ControlCommand,
    OperationNews,
    ProgressRequest,
    Result,
    encode_request,
    read_answer,
)
from ..telemetry.discovery import peer_of
from .attach import RunningServer

CONNECT_S = 5.0
TIMEVAL = Struct("ll")  # seconds, microseconds
ANSWER_S = 30.0  # of an operation, which is asked again and again how it goes


class AskError(Exception):
    """The supervisor refuses, or does not answer; the message says why."""


def ask(
    server: RunningServer, command: ControlCommand[Arguments, Result], arguments: Arguments, timeout: float = 10.0
) -> Result:
    """The result of a command; `timeout` is what the answer may take. Nothing is told to anybody but that server."""
    request = encode_request(command.name, arguments)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, server.name)
            pid, uid = peer_of(connection)
            if (pid, uid) != (server.pid, server.uid):
                raise AskError(f"not the supervisor on {server} listens there, but process {pid} of user {uid}")
            connection.sendall(request)
            line = _line(connection, time.monotonic() + timeout)
        except (TimeoutError, BlockingIOError):
            raise AskError(
                f"the supervisor on {server} does not answer {command.name!r} within {timeout:g} s"
            ) from None
        except OSError as error:
            raise AskError(f"the supervisor on {server} cannot be asked: {error.strerror}") from None
    if not line:
        raise AskError(f"the supervisor on {server} has closed the connection")
    try:
        answer = read_answer(line)
        if answer.error is not None:
            raise AskError(answer.error)
        return msgspec.convert(answer.result, command.result)
    except msgspec.DecodeError as error:
        raise AskError(f"the supervisor on {server} is of another version: {error}") from None


def _connect(connection: socket.socket, name: str) -> None:
    """It waits for its turn where a crowd wants to connect: one that does not block is told at once that there is no
    room, as Unix sockets have it. BlockingIOError if it does not come.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.pack(int(CONNECT_S), 0))
    connection.connect(f"\0{name}")
    connection.settimeout(CONNECT_S)


def follow(server: RunningServer, command: ControlCommand[ProgressRequest, OperationNews], number: int) -> str:
    """Print how an operation goes until it is over; why it failed, or nothing."""
    seen = 0
    while True:
        news = ask(server, command, ProgressRequest(number, seen), ANSWER_S)
        for line in news.lines:
            print(line, flush=True)
        seen += len(news.lines)
        if news.done:
            return news.failed


def _line(connection: socket.socket, deadline: float) -> bytes:
    """One line, or nothing if the connection ends before; TimeoutError if it takes longer, however much comes."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= ANSWER_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        line += piece
    return line
