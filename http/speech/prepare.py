"""From a checked form to what the engine is asked: a sound in windows, each a sequence of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from actorserve.actors.model.encoder_decoder.spec import SpeechSpec
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.sampling.ranges import UINT64
from actorserve.actors.protocol.topics.prompts import SoundPrompt

from ..errors import ApiError, bad_request, overloaded
from ..generation.fields.decoding import decode_query
from ..generation.fields.ranges import check_ranges
from ..generation.fields.sampling import NO_SEED
from ..settings import Settings
from .fallback import has_thresholds
from .schemas import TIMED, SpeechRequest

MOST_WINDOWS = 1024
MOST_HELD = 256 << 20  # bytes of sounds, of one frontend
LEAST_HELD = 4  # of the longest sounds
LEAST_STEP = 0.05  # from one temperature to the next
MAX_PROMPT = 16 << 10  # characters
OF_GPT_TRANSCRIBE = ("languages", "keywords", "known_speaker_names", "known_speaker_references")  # lists
LISTS = ("timestamp_granularities", "include", "context_bias", *OF_GPT_TRANSCRIBE)
NUMBERS = (
    "temperature top_p top_k min_p repetition_penalty frequency_penalty presence_penalty"  # of Sampling, by its names
).split()
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
NOT_BUILT: dict[str, tuple[object, ...]] = {  # by field: the values that change nothing
    **dict.fromkeys(("include", *OF_GPT_TRANSCRIBE), (None, [])),
    "to_language": (None, "", "en"),
    "hotwords": (None, ""),
    "use_beam_search": (None, False),
    "n": (None, 1),
    "watermarking": (None, False),
    "vllm_xargs": (None, "", "{}"),
    "context_bias": (None, []),
    "diarize": (None, False),
    **dict.fromkeys(("file_id", "file_url", "speaker_references"), (None, "")),
}


def speech_of(settings: Settings) -> SpeechSpec:
    """How the model listens; a 400 if it does not."""
    if settings.encoder is None or settings.encoder.speech is None:
        if names := settings.instead(lambda one: one.hears):
            text = f"model: {settings.served[0]} does not listen; {names} does."
            raise ApiError(400, text, "model", "model_not_supported")
        text = "model: this model does not listen; sounds are written down by one that does, such as Whisper."
        raise ApiError(400, text, "model", "model_not_supported")
    return settings.encoder.speech


def sound_limit(settings: Settings) -> int:
    """Bytes of a sound; 0 for a model that writes none down."""
    return settings.max_audio_bytes if settings.hears else 0


class HeldSounds:
    """Bytes of the sounds that are being written down: each is kept until its text is told, and all take so many."""

    def __init__(self, longest: int) -> None:
        """`longest`: of one; some of these are taken in any case."""
        self._most = max(MOST_HELD, LEAST_HELD * longest)
        self.held = 0

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """One of so many bytes; 503 where it is too much."""
        if self.held + size > self._most:
            raise overloaded("The server holds as many bytes of sounds as it takes. Try again soon.")
        self.held += size
        try:
            yield
        finally:
            self.held -= size


def read_form(fields: Mapping[str, list[Any]]) -> SpeechRequest:
    """The struct of a form's fields. ApiError 400 names the one that cannot be."""
    given: dict[str, Any] = {}
    for name, values in fields.items():
        plain = name.removesuffix("[]")
        if plain in LISTS:
            given[plain] = [value.decode(errors="replace") for value in values if value]
        elif plain == "file":
            given[plain] = values[-1]
        elif values[-1] != b"":
            try:
                given[plain] = values[-1].decode()
            except UnicodeDecodeError:
                raise bad_request(f"{plain} is not UTF-8.", plain) from None
    if other := next((name for name in ("file_id", "file_url") if given.get(name)), None):
        raise bad_request(f"{other} is not supported: the form's field `file` is the sound.", other)
    if "file" not in given:
        raise bad_request("file is missing: the form's field of that name is the sound.", "file")
    body = decode_query(SpeechRequest, given)
    check_ranges(body)
    return body


def check(body: SpeechRequest, spec: SpeechSpec, task: str) -> None:
    """400 for what goes not together, or not with this model."""
    for name, nothing in NOT_BUILT.items():
        if getattr(body, name) not in nothing:
            raise bad_request(f"{name} is not supported by this server yet.", name)
    if not body.file:
        raise bad_request("file is empty.", "file")
    if body.language is not None and spec.languages and body.language not in spec.languages:
        known = ", ".join(sorted(spec.languages))
        raise bad_request(f"language: {body.language:.32} is none that this model knows ({known}).", "language")
    if body.language not in (None, "en") and not spec.languages:
        raise bad_request("language: this model knows English alone.", "language")
    if task == TRANSLATE and TRANSLATE not in spec.tasks:
        raise bad_request("model: this model does not translate.", "model")
    if body.stream and body.response_format not in ("json", "text"):
        raise bad_request(f"stream: response_format {body.response_format} is told as a whole.", "stream")
    for name in ("stream_include_usage", "stream_continuous_usage_stats"):
        if getattr(body, name) and not body.stream:
            raise bad_request(f"{name} goes with stream: true.", name)
    if len(body.prompt or "") > MAX_PROMPT:
        raise bad_request(f"prompt has more than {MAX_PROMPT} characters.", "prompt")
    if body.stream and has_thresholds(body):
        raise bad_request("stream: with thresholds a text may be written anew, and is told as a whole.", "stream")
    if body.temperature_inc is not None and 0 < body.temperature_inc < LEAST_STEP:
        raise bad_request(f"temperature_inc must be 0 or at least {LEAST_STEP}.", "temperature_inc")
    wanted = body.timestamp_granularities or []
    if wanted and body.response_format != "verbose_json":
        text = "timestamp_granularities goes with response_format verbose_json."
        raise bad_request(text, "timestamp_granularities")


def sound_prompt(body: SpeechRequest, task: str, window: int = 0) -> SoundPrompt:
    """As the renderer takes it."""
    timed = body.response_format in TIMED
    return SoundPrompt(body.file, task, body.language or "", body.prompt or "", timed, window)


def params(body: SpeechRequest, settings: Settings, windows: int, about: tuple[str, int]) -> list[bytes]:
    """The encoded Generation of each window; `about`: the request's id, and which of Sampling.logprobs."""
    if windows > MOST_WINDOWS:
        raise bad_request(f"file: it has {windows} windows; at most {MOST_WINDOWS} are taken.", "file")
    seed = secrets.randbits(64) if body.seed in NO_SEED else body.seed or 0
    given: dict[str, Any] = {
        name: settings.sampling_defaults[name] for name in NUMBERS if name in settings.sampling_defaults
    }
    given |= {"temperature": 0.0}
    given |= {name: value for name in NUMBERS if (value := getattr(body, name)) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, int(given["top_k"]))
    request_id, logprobs = about
    return [
        msgspec.msgpack.encode(
            Generation(
                Sampling((seed + index) & UINT64, logprobs=logprobs, **given),
                stream=bool(body.stream),
                request_id=request_id,
                skip_special_tokens=False,
            )
        )
        for index in range(windows)
    ]
