"""The stream of what was said in a sound, gone on with by asking again: its server tells no trail, but its events have
no ids and no times, or those of the first, and the same sound makes the same text where nothing is drawn, or the client
gave a seed.

Another replica writes all of it down once more. What the client has of it is dropped, and has to be the same: where it
is not, the stream breaks off, since no end of another text belongs behind this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from .trail import MOST_HELD, TrailError

PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
DELTAS = {"transcript.text.delta": "delta", "transcription.text.delta": "text"}  # OpenAI's, Mistral's: the text's field
DONE = ("transcript.text.done", "transcription.done")
END = b"[DONE]"  # of chunks
ENDING = "server_ending"  # the code of an error that another server does not have
MODEL = re.compile(rb'name="model"[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,512})\r\n--')
encode = msgspec.json.Encoder().encode


class ErrorOf(msgspec.Struct, frozen=True):
    """As far as it is looked at."""

    code: str | int | None = None


class Piece(msgspec.Struct, frozen=True):
    """`delta` of a chunk."""

    content: str = ""


class Choice(msgspec.Struct, frozen=True):
    """Of a chunk."""

    delta: Piece = Piece()
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """Of the stream. Chunks, which are vLLM's, have no type."""

    type: str = ""
    delta: str = ""
    text: str = ""
    error: ErrorOf | None = None
    choices: list[Choice] | None = None
    id: str = ""
    created: int = 0


decode = msgspec.json.Decoder(Event).decode


class Transcript:
    """Of one stream, also where several replicas have begun it. Used as a trail is (trail.py)."""

    def __init__(self) -> None:
        self.closed = False
        self.is_over = False  # nobody can go on with it
        self._text = ""  # that the client has
        self._behind = ""  # what of it has not come again yet
        self._held = b""
        self._head: dict[str, str | int] = {}  # of the first chunk
        self._ends = self._ended = 0  # chunks without text: that the client has, that have come of this replica
        self._finished = False  # the client has the end of all text

    @property
    def tokens(self) -> int:
        """How far it is: characters."""
        return len(self._text)

    def drop_rest(self) -> None:
        """The replica is gone: another one begins anew."""
        self._held, self._behind, self._ended = b"", self._text, 0

    def ask(self, target: str, body: bytes, request_id: str) -> tuple[str, bytes]:
        """The same once more."""
        return target, body

    def is_gone_on_with(self, headers: Mapping[str, str]) -> bool:
        return headers.get("Content-Type", "").startswith("text/event-stream")

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """What of the stream the client may have now, and of how many events that is. TrailError if it is another."""
        *events, self._held = (self._held + data).split(b"\n\n")
        passed = list[bytes]()
        try:
            for event in events:
                passed.append(self._passed(event))
            if len(self._held) > MOST_HELD:
                raise TrailError(f"an event of a stream has more than {MOST_HELD} bytes")
        except TrailError as error:
            error.passed = b"".join(passed)
            raise
        return b"".join(passed), len(events)

    def _passed(self, written: bytes) -> bytes:
        name, found, data = written.partition(b"data: ")
        if not found or (name and not name.startswith(b"event: ")):
            return written + b"\n\n"
        if data == END:
            self.closed = True
            return written + b"\n\n"
        event = _read(data)
        if event.error is not None and event.error.code == ENDING:
            raise TrailError("its server ends")
        if event.choices is not None:
            return self._chunk(event, event.choices, data)
        if event.type in DELTAS:
            return self._new(event, name, written)
        if self._behind and event.type in DONE:
            self._differs()
        self.closed = event.type in DONE or event.error is not None
        return written + b"\n\n"

    def _new(self, event: Event, name: bytes, written: bytes) -> bytes:
        """Of a piece of text, what the client has not got."""
        field = DELTAS[event.type]
        text: str = getattr(event, field)
        rest = self._rest(text)
        if rest == text:
            return written + b"\n\n"
        return b"%sdata: %s\n\n" % (name, encode({"type": event.type, field: rest})) if rest else b""

    def _chunk(self, event: Event, choices: list[Choice], data: bytes) -> bytes:
        """The same of a chunk, which has the id and the time of the first."""
        self._head = self._head or {"id": event.id, "created": event.created}
        text = choices[0].delta.content if choices else ""
        if text:
            rest = self._rest(text)
            if rest and self._finished:
                self._differs()
        elif self._behind:
            self._differs()
        else:
            self._ended += 1
            rest = ""
        if not rest and (text or self._ended <= self._ends):
            return b""
        self._ends = max(self._ends, self._ended)
        self._finished |= any(choice.finish_reason is not None for choice in choices)
        told = msgspec.json.decode(data) | self._head
        if rest != text:
            told["choices"][0]["delta"]["content"] = rest
        return b"data: %s\n\n" % encode(told)

    def _rest(self, text: str) -> str:
        """What the client has not got of the next piece."""
        known = min(len(text), len(self._behind))
        if text[:known] != self._behind[:known]:
            self._differs()
        self._behind = self._behind[known:]
        self._text += text[known:]
        return text[known:]

    def _differs(self) -> None:
        self.is_over = True
        raise TrailError("another replica hears another text")


def _read(data: bytes) -> Event:
    try:
        event = decode(data)
    except msgspec.MsgspecError:
        event = Event()
    if not event.type and event.error is None and event.choices is None:
        raise TrailError("an event of a transcript cannot be read")
    return event


def model_of(path: str, body: bytes) -> str:
    """That a form asks for."""
    found = MODEL.search(body) if path in PATHS else None
    return found[1].decode(errors="replace") if found else ""
