"""How long frames say that they are, looked at before any of them is kept: h2 says so only once all of it has come."""

from __future__ import annotations

LENGTH_BYTES, REST_BYTES = 3, 6  # of a frame's head
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class FrameLengths:
    """Those of one connection, from its preface on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._passing = len(PREFACE)  # bytes that are no length
        self._length = b""  # as much as has come of the next one

    def are_bounded(self, data: bytes) -> bool:
        """Of all frames that begin in this data, which follows what was seen before."""
        at = 0
        while True:
            passed = min(self._passing, len(data) - at)
            self._passing -= passed
            at += passed
            if at == len(data):
                return True
            wanted = LENGTH_BYTES - len(self._length)
            self._length += data[at : at + wanted]
            at += wanted
            if len(self._length) < LENGTH_BYTES:
                return True
            length = int.from_bytes(self._length, "big")
            if length > self._most:
                return False
            self._passing, self._length = REST_BYTES + length, b""
