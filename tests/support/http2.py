"""A client of HTTP/2 for tests: frame by frame, so that it may also do what no client should."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.connection
import h2.events
from h2.config import H2Configuration
from h2.errors import ErrorCodes

from tests.support.client import WAIT_S

Headers = list[tuple[str, str]]


@dataclass
class Answer:
    """What has come of one stream."""

    informed: list[str] = field(default_factory=list)  # statuses before the answer's own
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None  # with this error

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


def _texts(headers: Iterable[tuple[Any, Any]] | None) -> dict[str, str]:
    return dict(headers or ())


class Http2Client:
    """One connection. `reads`: room is made again for what was read, as polite clients do."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, *, reads: bool = True) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        config = H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        self.http = h2.connection.H2Connection(config)
        self.answers: dict[int, Answer] = {}
        self.goodbye: ErrorCodes | int | None = None  # why the server lets go of the connection
        self.closed = False
        self._reads = reads
        self.http.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        end: bool = True,
    ) -> int:
        """The number of the stream; the body as far as windows let it."""
        number = self.http.get_next_available_stream_id()
        self.answers[number] = Answer()
        head = [(":method", method), (":scheme", "http"), (":authority", "any"), (":path", path), *headers]
        self.http.send_headers(number, head, end_stream=body is None and end)
        if body is not None:
            self.give(number, body, end)
        self.flush()
        return number

    def give(self, number: int, body: bytes, end: bool = True) -> None:
        """More of a request's body, all of it unless the answer comes first."""
        left = memoryview(body)
        while left and not self.answers[number].ended:
            room = min(self.http.local_flow_control_window(number), self.http.max_outbound_frame_size, len(left))
            if room <= 0:
                self.flush()
                self.hear()
                continue
            self.http.send_data(number, bytes(left[:room]))
            left = left[room:]
            self.flush()
        if end and not self.answers[number].ended:
            self.http.end_stream(number)
        self.flush()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()) -> Answer:
        return self.whole(self.send(method, path, body, headers))

    def whole(self, number: int) -> Answer:
        """The answer, once it has ended."""
        self.until(lambda: self.answers[number].ended)
        return self.answers[number]

    def until(self, so: Callable[[], bool]) -> None:
        """Read until it is so; fails at the connection's end."""
        while not so():
            assert not self.closed, f"closed, since {self.goodbye}"
            self.hear()

    def until_closed(self) -> None:
        while not self.closed:
            self.hear()

    def hear(self) -> None:
        """What comes next; its end, too, if it is a reset."""
        try:
            data = self.socket.recv(1 << 16)
        except (ConnectionError, ssl.SSLEOFError):
            data = b""
        self.closed = not data
        if self.goodbye is None:  # behind it h2 takes nothing more
            for event in self.http.receive_data(data):
                self._see(event)
        if not self.closed and self.goodbye is None:
            self.flush()

    def _see(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.InformationalResponseReceived():
                self._of(event).informed.append(_texts(event.headers)[":status"])
            case h2.events.ResponseReceived():
                self._of(event).headers = _texts(event.headers)
            case h2.events.DataReceived():
                self._of(event).body += event.data
                if self._reads:
                    self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self._of(event).ended = True
            case h2.events.StreamReset():
                answer = self._of(event)
                answer.reset, answer.ended = event.error_code, True
            case h2.events.ConnectionTerminated():
                self.goodbye = event.error_code

    def _of(self, event: h2.events.Event) -> Answer:
        return self.answers[event.stream_id]  # type: ignore[attr-defined]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
