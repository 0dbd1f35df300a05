"""The forms of requests with a sound, as structs, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from actorserve.actors.protocol.sampling.ranges import INT64, Range

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
TIMED = ("srt", "vtt", "verbose_json")  # forms that need timestamps


class SpeechRequest(msgspec.Struct, kw_only=True):
    """POST /v1/audio/transcriptions and /v1/audio/translations: the fields of a form."""

    file: bytes
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: ResponseFormat = "json"
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    stream: bool | None = None
    temperature: Annotated[float | None, Range(0, 1)] = None
    top_p: Annotated[float | None, Range(0, 1, above=True)] = None
    top_k: Annotated[int | None, Range(-1)] = None
    min_p: Annotated[float | None, Range(0, 1)] = None
    seed: Annotated[int | None, INT64] = None
    max_completion_tokens: Annotated[int | None, Range(1)] = None
    repetition_penalty: Annotated[float | None, Range(0, 100, above=True)] = None
    frequency_penalty: Annotated[float | None, Range(-2, 2)] = None
    presence_penalty: Annotated[float | None, Range(-2, 2)] = None
    compression_ratio_threshold: Annotated[float | None, Range(0)] = None
    logprob_threshold: Annotated[float | None, Range(-100, 0)] = None
    no_speech_threshold: Annotated[float | None, Range(0, 1)] = None
    temperature_inc: Annotated[float | None, Range(0, 1)] = None
    request_id: str | None = None
    include: list[str] | None = None
    to_language: str | None = None
    hotwords: str | None = None
    use_beam_search: bool | None = None  # this and what follows are vLLM's
    n: int | None = None
    watermarking: bool | None = None
    vllm_xargs: str | None = None
    stream_include_usage: bool | None = None  # either has a stream told as vLLM's clients read it
    stream_continuous_usage_stats: bool | None = None
    context_bias: list[str] | None = None  # this and what follows are Mistral's
    diarize: bool | None = None
    file_id: str | None = None
    file_url: str | None = None
    speaker_references: str | None = None
    languages: list[str] | None = None  # of which one may be spoken; this and what follows are of gpt-transcribe
    keywords: list[str] | None = None
    known_speaker_names: list[str] | None = None
    known_speaker_references: list[str] | None = None

    def __post_init__(self) -> None:
        if self.languages and len(self.languages) == 1:
            self.language, self.languages = self.language or self.languages[0], None
        if self.language is not None:  # EN, en-US and en_US are English
            self.language = self.language.strip().lower().replace("_", "-").partition("-")[0]


class SpeechUsage(msgspec.Struct, kw_only=True):
    """`usage`: by the sound's length."""

    type: str
    seconds: int


class Segment(msgspec.Struct, kw_only=True):
    """What was said between two timestamps."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Word(msgspec.Struct, kw_only=True):
    """A word, and when it was said."""

    word: str
    start: float
    end: float


class Transcription(msgspec.Struct, kw_only=True):
    """The answer; all but text and usage where response_format is verbose_json."""

    text: str
    usage: SpeechUsage
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    words: list[Word] | None = None
    segments: list[Segment] | None = None


class TranscriptEvent(msgspec.Struct, kw_only=True):
    """An event of a stream: transcript.text.delta or transcript.text.done; or a chunk as vLLM's clients read it."""

    type: str | None = None
    delta: str | None = None
    text: str | None = None
    usage: dict[str, Any] | None = None
    id: str | None = None  # this and what follows are of chunks
    object: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[dict[str, Any]] | None = None
