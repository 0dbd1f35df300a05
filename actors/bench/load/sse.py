"""Server-sent events, cut out of a stream of bytes that may be cut anywhere.

On the way of every token: the common case is one `split`.
"""

from __future__ import annotations


class EventReader:
    """`feed` what came, and get the data of the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that ended in what has come so far, in order."""
        data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # perhaps the first half of a line's end
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        self._rest = rest + held
        return [found for block in blocks if (found := _data_of(block)) is not None]

    @property
    def cut(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._rest.strip())


def _data_of(block: bytes) -> bytes | None:
    """The data of one event; None if it has none, as a comment has."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
