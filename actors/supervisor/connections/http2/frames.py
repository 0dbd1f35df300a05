"""Frames as they come, looked at before h2 has them: h2 says how long one is only once all of it has come, and takes
nothing more, of no stream, behind a GOAWAY, by which a client says that it opens no more.
"""

from __future__ import annotations

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LENGTH_BYTES, HEAD_BYTES = 3, 9  # of a frame
GOAWAY = b"\x07"
TYPE, STREAM, CODE = slice(3, 4), slice(5, 9), slice(13, 17)  # CODE: behind the last stream, in a GOAWAY
NONE = bytes(4)  # as a stream, the connection; as a code, no error


class Misused(Exception):
    """The client asks too much of the server."""

    def __init__(self, code: ErrorCodes) -> None:
        super().__init__(code)
        self.code = code


class Frames:
    """Those of one connection, from its preface on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._passing = len(PREFACE)  # bytes that go to h2, whatever they are
        self._held = b""  # the beginning of a frame of which that is not known yet
        self.has_goodbye = False  # the client opens no more streams, and waits for those that are open

    def take(self, data: bytes) -> bytes:
        """What h2 is to have now, of this and of what was held."""
        data, self._held = self._held + data, b""
        at, taken = 0, []
        while at < len(data):
            if self._passing:
                part = data[at : at + self._passing]
                self._passing -= len(part)
                at += len(part)
                taken.append(part)
                continue
            head = data[at : at + HEAD_BYTES]
            size, is_goaway = self._size(head), head[TYPE] == GOAWAY
            if size is None or (is_goaway and len(data) < at + size):
                self._held = data[at:]
                break
            if is_goaway and _is_without_error(data[at : at + size]):
                self.has_goodbye = True
                at += size
            else:
                self._passing = size
        return b"".join(taken)

    def _size(self, head: bytes) -> int | None:
        """Of the frame with this head; None if not all of that has come."""
        if len(head) < LENGTH_BYTES:
            return None
        length = int.from_bytes(head[:LENGTH_BYTES], "big")
        if length > self._most:
            raise Misused(ErrorCodes.FRAME_SIZE_ERROR)
        return HEAD_BYTES + length if len(head) == HEAD_BYTES else None


def _is_without_error(goaway: bytes) -> bool:
    return goaway[STREAM] == NONE == goaway[CODE]
