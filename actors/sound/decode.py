"""From a file's bytes to samples: wav, mp3, flac, ogg, m4a, webm and their kin, by PyAV, as mono at the model's rate.

What comes are strangers' bytes: only containers of sounds are opened, nothing that names other files or addresses, and
no more than MOST_SECONDS are decoded. Whoever calls this may be killed for being slow.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from av import AudioFrame, AudioResampler, Packet
    from av.container import InputContainer
    from av.stream import Stream

CONTAINERS = "wav,w64,aiff,mp3,flac,ogg,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,amr,caf"
MOST_SECONDS = 3600
MOST_CHANNELS = 8


class SoundError(ValueError):
    """These bytes are no sound that can be taken; the reason follows."""


def decode(data: bytes, rate: int, beat: Callable[[], None] = lambda: None) -> np.ndarray:
    """float32 samples in [-1, 1], mono. `beat` is called as it gets on."""
    for made in decode_steps(data, rate):
        beat()
        if made is not None:
            return made
    raise SoundError("it has no samples")


def decode_steps(data: bytes, rate: int, most_seconds: float = MOST_SECONDS) -> Iterator[np.ndarray | None]:
    """The same in small steps: None until it is there."""
    import av

    try:
        with av.open(
            io.BytesIO(data), mode="r", metadata_errors="ignore", options={"format_whitelist": CONTAINERS}
        ) as container:
            yield from _samples(container, rate, most_seconds)
    except (av.FFmpegError, OSError, UnicodeDecodeError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise SoundError(f"it is no sound in a form that is read ({reason})") from None


def _samples(container: InputContainer, rate: int, most_seconds: float) -> Iterator[np.ndarray | None]:
    import av

    if not container.streams.audio:
        raise SoundError("it has no sound")
    stream = container.streams.audio[0]
    if stream.channels > MOST_CHANNELS:
        raise SoundError(f"it has {stream.channels} channels; at most {MOST_CHANNELS} are taken")
    resampler: av.AudioResampler | None = None
    form: tuple[str, str, int] | None = None
    parts: list[np.ndarray] = []
    count = 0
    for frames in frames_of(container, stream):
        for frame in frames:
            if (found := (frame.format.name, frame.layout.name, frame.sample_rate)) != form:  # files that were joined
                parts += _resampled(resampler, None)
                resampler, form = av.AudioResampler(format="flt", layout="mono", rate=rate), found
            made = _resampled(resampler, frame)
            parts += made
            count += sum(map(len, made))
        if count > most_seconds * rate:
            raise SoundError(f"it is longer than {most_seconds:g} seconds")
        yield None
    parts += _resampled(resampler, None)
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not samples.size:
        raise SoundError("it has no samples")
    if not np.isfinite(samples).all():
        raise SoundError("it has samples that are no numbers")
    yield np.ascontiguousarray(samples, np.float32)


def packets_of(container: InputContainer, stream: Stream) -> Iterator[Packet[Any]]:
    """Those that can be read: what was cut off ends there."""
    import av

    with contextlib.suppress(av.error.InvalidDataError):
        yield from container.demux(stream)


def frames_of(container: InputContainer, stream: Stream) -> Iterator[list[Any]]:
    """The frames of each packet. What is damaged is left out, as players do: what is around it is worth having."""
    import av

    for packet in packets_of(container, stream):
        frames: list[Any] = []
        with contextlib.suppress(av.error.InvalidDataError):
            frames = packet.decode()
        yield frames


def _resampled(resampler: AudioResampler | None, frame: AudioFrame | None) -> list[np.ndarray]:
    """What comes out when this goes in; None: the rest."""
    return [] if resampler is None else [made.to_ndarray()[0] for made in resampler.resample(frame)]
