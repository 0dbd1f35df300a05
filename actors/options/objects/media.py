"""--limit-mm-per-prompt, --media-io-kwargs and --mm-processor-kwargs: JSON objects with vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..config import Config, ConfigError
from ..parser import nearest

LIMIT, READING, PROCESSING = "--limit-mm-per-prompt", "--media-io-kwargs", "--mm-processor-kwargs"
MOST_MEDIA = 128  # of one prompt, together
Count = Annotated[int, Meta(ge=0, le=MOST_MEDIA)]
Byte = Annotated[int, Meta(ge=0, le=255)]
T = TypeVar("T", bound=msgspec.Struct)


class CountLimit(msgspec.Struct, frozen=True):
    """vLLM's longer form; sizes in it are hints of how much memory to keep, which is not kept here."""

    count: Count = MOST_MEDIA


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of each a prompt may have."""

    image: Count | CountLimit = MOST_MEDIA
    video: Count | CountLimit = MOST_MEDIA
    audio: Count | CountLimit = MOST_MEDIA

    def most(self, modality: str) -> int:
        """Of one modality."""
        given = getattr(self, modality)
        return given if isinstance(given, int) else given.count


class ImageReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rgba_background_color: tuple[Byte, Byte, Byte] = (255, 255, 255)  # behind what is transparent


class VideoReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_frames: Annotated[int, Meta(ge=1, le=768)] = 32  # taken evenly over all of it
    fps: Annotated[float, Meta(gt=0, le=60)] | None = None  # at most so many of a second


class MediaReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files are read."""

    image: ImageReading = ImageReading()
    video: VideoReading = VideoReading()


def media_limits(config: Config) -> MediaLimits:
    """What is configured; ConfigError names the key that is wrong."""
    return _read(config.limit_mm_per_prompt, MediaLimits, LIMIT)


def media_reading(config: Config) -> MediaReading:
    """The same, of files."""
    return _read(config.media_io_kwargs, MediaReading, READING)


def processor_kwargs(config: Config) -> dict[str, Any]:
    """The same, of the model's processor: whatever that takes."""
    text = config.mm_processor_kwargs
    values = {} if text is None else _decoded(text, PROCESSING)
    if not isinstance(values, dict):
        raise ConfigError(f"{PROCESSING}: {text} is no JSON object")
    return values


def check_media(config: Config) -> None:
    """ConfigError for what cannot be."""
    media_limits(config)
    media_reading(config)
    processor_kwargs(config)


def _read(text: str | None, kind: type[T], option: str) -> T:
    if text is None:
        return kind()
    values = _decoded(text, option)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{option}: {_trouble(values, kind, str(error))}") from None


def _decoded(text: str, option: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{option}: {text} is no JSON ({error})") from None


def _trouble(values: Any, kind: type[msgspec.Struct], message: str) -> str:
    known = kind.__struct_fields__
    if isinstance(values, dict) and (wrong := next((key for key in values if key not in known), None)):
        return f"{wrong} is none of {', '.join(known)}{nearest(wrong, known)}"
    text, _, path = message.partition(" - at `$.")
    key = path.strip("`")
    return f"{key}: {text}" if key else text
