"""The sound that a client is sending: PCM of 16 bits, one channel, in base64, until it is committed."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable

from ..errors import ApiError, bad_request, overloaded

SAMPLE_BYTES = 2
# of what a client may send at a time, the bytes of a sound: base64 takes four for three, and events have heads
SHARE = 0.6
MOST_SOUND = 256 << 20  # bytes of all sessions' sounds; a connection's record has each once more, in base64
LEAST_SOUNDS = 8  # of the longest that fit in any case
SHORT = 64 << 10  # bytes of a sound that are not counted


class SoundBudget:
    """What sounds take that are not committed, of all sessions together. Short ones take nothing of it, so that whoever
    fills it up is in the way of long ones alone.
    """

    def __init__(self, longest: int) -> None:
        """`longest`: bytes of one."""
        self.longest = longest
        self._most = max(MOST_SOUND, LEAST_SOUNDS * longest)
        self._held = 0

    def count(self, before: int, size: int) -> None:
        """A sound had `before` bytes, and has `size`."""
        self._held += _counted(size) - _counted(before)

    def check(self, size: int) -> None:
        """503 for a sound of so many bytes, which are counted, if all of them are too much."""
        if _counted(size) and self._held > self._most:
            text = "The server holds as many bytes of sounds that are not committed as it takes: what you have sent of"
            raise overloaded(f"{text} this one is dropped. Send it again soon, or commit shorter ones.")


def _counted(size: int) -> int:
    return size if size > SHORT else 0


class InputBuffer:
    """What has come of it."""

    def __init__(self, budget: SoundBudget) -> None:
        self._most, self._budget = budget.longest, budget
        self._parts: list[bytes] = []
        self._place = 0
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._budget.count(self._size, size)
        self._size = size

    def release(self) -> None:
        """Nobody wants it any more."""
        self.size = 0

    def append(self, text: str, place: int) -> None:
        """More of it, of a message at this place of the client's stream; ApiError where it is none, or too much."""
        try:
            data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise bad_request(f"audio is no base64: {error}.", "audio") from None
        self.put(data, place)

    def put(self, data: bytes, place: int) -> None:
        if self.size + len(data) > self._most:
            raise self.full()
        if not self.size:
            self._place = place
        self._parts.append(data)
        self.size += len(data)

    def full(self) -> ApiError:
        text = f"audio: at most {self._most} bytes of a sound are taken before input_audio_buffer.commit."
        return ApiError(400, text, "audio", "input_audio_buffer_full")

    @property
    def place(self) -> int | None:
        """Where the first message begins of which something is here; None: it is empty."""
        return self._place if self.size else None

    def clear(self) -> None:
        self._parts.clear()
        self.size = 0

    def take(self) -> bytes:
        """All of it, in whole samples; then it is empty."""
        data = self.peek()
        self.clear()
        return data

    def peek(self) -> bytes:
        """All of it, while it stays."""
        data = b"".join(self._parts)
        if len(data) < SAMPLE_BYTES:
            text = "The input audio buffer is empty: send input_audio_buffer.append before input_audio_buffer.commit."
            raise ApiError(400, text, None, "input_audio_buffer_commit_empty")
        if len(data) % SAMPLE_BYTES:
            raise bad_request("audio: a sample has two bytes, and the last one has only one.", "audio")
        return data


def wav(samples: bytes, rate: int) -> bytes:
    """The same as a file."""
    head = struct.pack("<HHIIHH", 1, 1, rate, rate * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES)
    parts: Iterable[bytes] = (b"fmt ", struct.pack("<I", len(head)), head, b"data", struct.pack("<I", len(samples)))
    body = b"WAVE" + b"".join(parts) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


def seconds_of(samples: bytes, rate: int) -> float:
    """How long it is."""
    return len(samples) / SAMPLE_BYTES / rate
