"""HTTP/1.1 over a plain socket: what is sent is said byte by byte, and what comes is read to its end or its cut."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

WAIT_S = 60.0


class Cut(Exception):
    """The connection ended before the answer did; the message says where."""


class Answer(NamedTuple):
    """One answer: an interim one (100) is no answer, and is skipped."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of its server-sent events."""
        lines = self.body.decode().split("\n")
        return [line[6:] for line in lines if line.startswith("data: ")]

    @property
    def text(self) -> str:
        """What a chat answer says, whole or streamed."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return str(self.json["choices"][0]["message"]["content"])
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))


def request(
    method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """A request's bytes; a dict is sent as JSON."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body or b""
    fields = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


class Connection:
    """One connection. It reads an answer at a time, whatever was sent before."""

    def __init__(self, address: tuple[str, int], timeout: float = WAIT_S, source: str = "") -> None:
        """`source`: the client's own address, if that is to be another than usual."""
        self.socket = socket.create_connection(address, timeout=timeout, source_address=(source, 0) if source else None)
        self._read = b""
        self.interim: list[int] = []

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def answer(self) -> Answer:
        """The next answer, to its end; Cut if the connection ends or breaks before."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(self.chunks()))
        return Answer(status, headers, self._exactly(int(headers.get("content-length", 0))))

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers (lower case) of the next answer; interim ones are noted in `interim`."""
        while True:
            lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            if not lines[0].startswith("HTTP/1."):
                raise Cut(f"no HTTP head: {lines[0][:80]!r}")
            status = int(lines[0].split()[1])
            if status >= 200:
                pairs = (line.split(":", 1) for line in lines[1:])
                return status, {name.lower(): value.strip() for name, value in pairs}
            self.interim.append(status)

    def chunks(self) -> Iterator[bytes]:
        """A chunked body's chunks as they come."""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            yield self._exactly(size + 2)[:-2]
        self._until(b"\r\n")

    def _until(self, end: bytes) -> bytes:
        while end not in self._read:
            self._more()
        before, _, self._read = self._read.partition(end)
        return before

    def _exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        found, self._read = self._read[:size], self._read[size:]
        return found

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except OSError as error:
            raise Cut(f"{error!r}, {len(self._read)} bytes unread: {self._read[:80]!r}") from error
        if not data:
            raise Cut(f"the end, {len(self._read)} bytes unread: {self._read[:80]!r}")
        self._read += data
