"""What clients send over a realtime connection: their events, and the fields of sessions and responses.

A field that is known nowhere is refused by its name, and so is a known one that asks for what is not here.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import bad_request
from ..generation.adapter import checked

Object = dict[str, Any]
T = TypeVar("T")
PCM = "audio/pcm"
RATES = (24_000, 16_000)  # OpenAI's, and vLLM's
TEXT = ["text"]


class RealtimeQuery(msgspec.Struct):
    """The query of the connection's request."""

    model: str | None = None
    intent: Literal["transcription", "conversation"] | None = None
    call_id: str | None = None  # of a telephone call: refused


class EventHead(msgspec.Struct):
    """What all events of clients have."""

    type: str
    event_id: str | None = None


class Closed(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of which each is known."""


class AudioFormat(Closed):
    type: str
    rate: int | None = None


class TranscriptionFields(Closed):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInput(Closed):
    format: AudioFormat | None = None
    transcription: TranscriptionFields | UnsetType | None = UNSET
    turn_detection: Any = UNSET
    noise_reduction: Any = None


class AudioFields(Closed):
    input: AudioInput | None = None
    output: Any = None


class ReasoningFields(Closed):
    effort: str | None = None


class CommonFields(Closed, kw_only=True):
    """What sessions and single responses have in common."""

    instructions: str | None = None
    output_modalities: list[str] | None = None
    tools: list[Object] | None = None
    tool_choice: str | Object | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: float | None = None
    reasoning: ReasoningFields | None = None
    parallel_tool_calls: bool | None = None
    prompt: Any = None


class SessionFields(CommonFields, kw_only=True):
    """`session` of session.update."""

    type: Literal["realtime", "transcription"] | None = None
    id: str | None = None  # and what else a client may send back as it was told it
    object: str | None = None
    created: int | None = None
    expires_at: int | None = None
    model: str | None = None
    audio: AudioFields | None = None
    truncation: str | Object | None = None
    tracing: Any = None
    include: list[str] | None = None


class ResponseFields(CommonFields, kw_only=True):
    """`response` of response.create."""

    audio: Any = None
    conversation: str | None = None
    input: list[Object] | None = None
    metadata: dict[str, str] | None = None


class SessionUpdate(msgspec.Struct):
    """vLLM's clients write the model beside the type."""

    session: Object | None = None
    model: str | None = None


class ItemCreate(msgspec.Struct):
    item: Object
    previous_item_id: str | None = None


class ItemNamed(msgspec.Struct):
    item_id: str


class ItemTruncate(msgspec.Struct):
    item_id: str
    content_index: int
    audio_end_ms: int


class AudioAppend(msgspec.Struct):
    audio: str


class AudioCommit(msgspec.Struct):
    final: bool | None = None  # vLLM's: this was the last of the sound


class ResponseCreate(msgspec.Struct):
    response: Object | None = None


class ResponseCancel(msgspec.Struct):
    response_id: str | None = None


class MessageItem(Closed):
    role: Literal["user", "assistant", "system"]
    content: list[Object]


class CallItem(Closed):
    name: str
    arguments: str
    call_id: str | None = None


class CallOutputItem(Closed):
    call_id: str
    output: str


BETA_SESSION = {  # the older names of a session's fields, and where they stand now
    "modalities": ("output_modalities",),
    "max_response_output_tokens": ("max_output_tokens",),
    "input_audio_format": ("audio", "input", "format"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "input_audio_noise_reduction": ("audio", "input", "noise_reduction"),
    "turn_detection": ("audio", "input", "turn_detection"),
    "voice": ("audio", "output", "voice"),
    "output_audio_format": ("audio", "output", "format"),
    "speed": ("audio", "output", "speed"),
}


def without_beta(given: Object) -> Object:
    """The same with the names of today."""
    found = {name: value for name, value in given.items() if name not in BETA_SESSION}
    for name, (*places, last) in BETA_SESSION.items():
        if name not in given:
            continue
        value, inside = given[name], found
        for place in places:
            held = inside.get(place)
            inside[place] = inside = dict(held) if isinstance(held, dict) else {}
        if name == "input_audio_format" and isinstance(value, str):
            value = {"type": PCM if value == "pcm16" else value}
        inside[last] = value
    return found


def fields_of(kind: type[T], given: object, path: str) -> T:
    """A part of an event as its struct; ApiError 400 names what cannot be, unknown fields among it."""
    return checked(kind, given, path)


def check_asked(asked: CommonFields, path: str) -> None:
    """400 for what is known, and not here."""
    if asked.output_modalities is not None and asked.output_modalities != TEXT:
        name = f"{path}.output_modalities"
        raise bad_request(f'{name} must be ["text"]: this server answers in texts only.', name)
    if asked.prompt is not None:
        raise bad_request(f"{path}.prompt is not supported.", f"{path}.prompt")
    if isinstance(asked.max_output_tokens, int) and asked.max_output_tokens < 1:
        name = f"{path}.max_output_tokens"
        raise bad_request(f'{name} must be at least 1, or "inf".', name)


def check_audio(audio: AudioFields, path: str) -> int | None:
    """The rate of the client's sounds, if it is said."""
    if audio.output:
        raise bad_request(f"{path}.output is not supported: this server answers in texts only.", f"{path}.output")
    given = audio.input
    if given is None:
        return None
    if given.noise_reduction is not None:
        field = f"{path}.input.noise_reduction"
        raise bad_request(f"{field} is not supported: send null.", field)
    if given.format is None:
        return None
    field = f"{path}.input.format"
    if given.format.type != PCM:
        raise bad_request(f"{field}.type must be {PCM}, 16 bits, one channel.", f"{field}.type")
    rate = given.format.rate or RATES[0]
    if rate not in RATES:
        raise bad_request(f"{field}.rate must be {' or '.join(map(str, RATES))}.", f"{field}.rate")
    return rate
