"""Turns in a sound that comes (`turn_detection` of type server_vad): where somebody begins to speak, and has ended.

By loudness alone. A frame of 20 ms is loud from -60 + 40 · threshold dB of full scale on (-40 at OpenAI's 0.5); three
loud ones in a row begin a turn, which ends behind `silence_duration_ms` of frames that are not. A turn has
`prefix_padding_ms` of what was before it. Frames are counted from the session's first sample, and nothing is known of
those before the buffer's beginning: so that who reads the same messages again from there finds the same turns.
"""

from __future__ import annotations

import operator
from array import array
from collections import deque
from typing import Literal

import msgspec

from ..errors import bad_request
from .audio import SAMPLE_BYTES, InputBuffer, SoundBudget
from .fields import Closed, Object, fields_of

FRAMES_A_SECOND = 50
BEGINS = 3  # loud frames
FULL_SCALE = 1 << 15
QUIETEST_DB, RANGE_DB = -60.0, 40.0  # of threshold 0, and more of threshold 1
MOST_MS = 10_000
IDLE_MS = (5_000, 30_000)  # the least and the most
FIELD = "turn_detection"


class TurnDetection(Closed, kw_only=True):
    """What a session asks for; the defaults are OpenAI's."""

    type: Literal["server_vad"]
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None


class BufferStart(msgspec.Struct, kw_only=True):
    """Where the buffer begins, as it is written down."""

    sample: int = 0  # of all that the client has sent in this session
    skip: int = 0  # bytes of the first message that is read again, which are not in the buffer
    item: str | None = None  # of the turn that was told to have begun
    idle: int | None = None  # the sample from which on nobody has spoken since a response; None: none is waited for


class Turn(msgspec.Struct, frozen=True):
    """What has been found."""

    begins: bool
    ms: int  # since the session's first sample


class Idle(msgspec.Struct, frozen=True):
    """Nobody has spoken for `idle_timeout_ms` behind a response."""

    start_ms: int  # since the session's first sample
    end_ms: int


def read_turn_detection(given: object, path: str) -> TurnDetection | None:
    """400 for what is not here."""
    name = f"{path}.{FIELD}"
    if given is None:
        return None
    if isinstance(given, dict) and given.get("type") == "semantic_vad":
        text = "semantic_vad is not supported: no model listens for ends of sentences here; server_vad goes by loudness"
        raise bad_request(f"{name}.type: {text}.", f"{name}.type")
    found = fields_of(TurnDetection, given, name)
    for field, value, most in (
        ("threshold", found.threshold, 1),
        ("prefix_padding_ms", found.prefix_padding_ms, MOST_MS),
        ("silence_duration_ms", found.silence_duration_ms, MOST_MS),
    ):
        if not 0 <= value <= most:
            raise bad_request(f"{name}.{field} must be 0 to {most}.", f"{name}.{field}")
    least, most = IDLE_MS
    if found.idle_timeout_ms is not None and not least <= found.idle_timeout_ms <= most:
        raise bad_request(f"{name}.idle_timeout_ms must be {least} to {most}.", f"{name}.idle_timeout_ms")
    return found


class TurnBuffer(InputBuffer):
    """The buffer of a session that has them: of what nobody speaks in it keeps the padding alone."""

    def __init__(self, budget: SoundBudget, given: TurnDetection, rate: int, heard: BufferStart) -> None:
        """`heard` is kept as the buffer is."""
        super().__init__(budget)
        self.given, self.heard = given, heard
        self._rate, self._frame = rate, rate // FRAMES_A_SECOND
        level = 10 ** ((QUIETEST_DB + RANGE_DB * given.threshold) / 20) * FULL_SCALE
        self._least = level * level * self._frame
        self._data = bytearray()
        self._messages: deque[tuple[int, int]] = deque()  # where each begins in the stream, and its bytes here
        self._looked = self._whole(heard.sample)  # up to here
        self._run = 0  # of loud frames, or while somebody speaks of silent ones
        self._begin: int | None = None  # the sample with which the turn begins, while somebody speaks
        self._end = 0  # of the turn, once it is over

    # --- as any buffer -----------------------------------------------------------------------------------------------

    def put(self, data: bytes, place: int) -> None:
        """More of it, of a message at this place of the stream. A turn ends when the buffer is full."""
        if len(data) > self._most:
            raise self.full()
        skip = self.heard.skip if not self._messages else 0
        self._messages.append((place, len(data) - skip))
        self._data += data[skip:]
        self.size = len(self._data)

    @property
    def place(self) -> int | None:
        return self._messages[0][0] if self._messages else None

    def clear(self) -> None:
        """Whole samples go; the half of one stays."""
        self._cut(len(self._data) // SAMPLE_BYTES)
        self.heard.item = None

    def peek(self) -> bytes:
        self._parts = [bytes(self._data)]
        try:
            return super().peek()
        finally:
            self._parts, self.size = [], len(self._data)

    # --- turns -------------------------------------------------------------------------------------------------------

    @property
    def speaks(self) -> bool:
        return self._begin is not None

    def look(self) -> Turn | Idle | None:
        """The next beginning, end or silence in what has come; None if there is none yet."""
        frame, first = self._frame, self.heard.sample
        samples = len(self._data) // SAMPLE_BYTES
        while (end := self._looked + frame) <= first + samples:
            loud = self._is_loud(self._looked - first, end - first)
            self._looked = end
            self._run = self._run + 1 if loud is not self.speaks else 0
            if not self.speaks and self._run == BEGINS:
                self._begin = max(first, end - BEGINS * frame - self._samples(self.given.prefix_padding_ms))
                self._run, self.heard.idle = 0, None
                return Turn(True, self._ms(self._begin))
            if self.speaks and self._run * frame >= self._samples(self.given.silence_duration_ms) and not loud:
                return self._ends_at(end)
            if self._is_idle(end):
                return self._idles(end)
        if self.speaks and self.size > self._most:
            return self._ends_at(first + samples)
        return None

    def await_turn(self, waits: bool) -> None:
        """A response has ended, behind which somebody should speak; or another has begun."""
        waits = waits and self.given.idle_timeout_ms is not None and not self.speaks
        self.heard.idle = self._looked if waits else None

    def _is_idle(self, sample: int) -> bool:
        since, most = self.heard.idle, self.given.idle_timeout_ms
        return since is not None and most is not None and sample - since >= self._samples(most)

    def _idles(self, sample: int) -> Idle:
        """Once: until the next response has ended, none is waited for."""
        since, self.heard.idle = self.heard.idle or 0, None
        return Idle(self._ms(since), self._ms(sample))

    def silence(self) -> bytes:
        """What is kept of it, up to where was looked."""
        return bytes(self._data[: (self._looked - self.heard.sample) * SAMPLE_BYTES])

    def _ends_at(self, sample: int) -> Turn:
        self._end, self._run = sample, 0
        return Turn(False, self._ms(sample))

    def catch_up(self) -> None:
        """What has come was heeded by a predecessor, who has told what there was to tell."""
        while (turn := self.look()) is not None:
            if isinstance(turn, Turn) and not turn.begins:
                self.over()

    def turn(self) -> bytes:
        """The one that is over; it is let go of by `over`."""
        assert self._begin is not None
        first = self.heard.sample
        return bytes(self._data[(self._begin - first) * SAMPLE_BYTES : (self._end - first) * SAMPLE_BYTES])

    def over(self) -> None:
        """It was committed, or could not be."""
        self._cut(self._end - self.heard.sample)
        self.heard.item = None

    def trim(self) -> None:
        """Let go of messages in which nobody speaks."""
        if self.speaks:
            return
        kept = (self._samples(self.given.prefix_padding_ms) + (1 + self._run) * self._frame) * SAMPLE_BYTES
        gone = 0
        while self._messages and len(self._data) - gone - self._messages[0][1] >= kept:
            if (gone + self._messages[0][1]) % SAMPLE_BYTES:
                break
            gone += self._messages.popleft()[1]
        if gone:
            del self._data[:gone]
            self.heard.sample += gone // SAMPLE_BYTES
            self.heard.skip, self.size = 0, len(self._data)

    def _cut(self, samples: int) -> None:
        """The buffer begins so many samples later, and anew."""
        left = samples * SAMPLE_BYTES
        del self._data[:left]
        self.heard.sample += samples
        while self._messages and self._messages[0][1] <= left:
            left -= self._messages.popleft()[1]
            self.heard.skip = 0
        if self._messages and left:
            self.heard.skip += left
            self._messages[0] = self._messages[0][0], self._messages[0][1] - left
        self._begin, self._run, self.size = None, 0, len(self._data)
        self._looked = self._whole(self.heard.sample)

    def _is_loud(self, start: int, end: int) -> bool:
        samples = array("h", bytes(self._data[start * SAMPLE_BYTES : end * SAMPLE_BYTES]))
        return bool(sum(map(operator.mul, samples, samples)) >= self._least)

    def _whole(self, sample: int) -> int:
        """The first frame that begins there or behind it."""
        return -(-sample // self._frame) * self._frame

    def _samples(self, ms: int) -> int:
        return ms * self._rate // 1000

    def _ms(self, sample: int) -> int:
        return sample * 1000 // self._rate


def turn_event(turn: Turn, item: str) -> Object:
    """As it is told."""
    name, ms = ("speech_started", "audio_start_ms") if turn.begins else ("speech_stopped", "audio_end_ms")
    return {"type": f"input_audio_buffer.{name}", ms: turn.ms, "item_id": item}


def idle_event(idle: Idle, item: str) -> Object:
    """As it is told."""
    times = {"audio_start_ms": idle.start_ms, "audio_end_ms": idle.end_ms}
    return {"type": "input_audio_buffer.timeout_triggered", **times, "item_id": item}
