"""Pictures, films and sounds that scripts give, in `multi_modal_data` or in the parts of a conversation: objects of
Pillow, or arrays; a film is several of them, or a file's path.
"""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from actorserve.http.errors import ApiError
from actorserve.http.media.parts import KNOWN, check_counts
from actorserve.http.settings import MediaRules

from ...media.pictures import Pictures
from ...media.refused import MediaRefused
from ...options.config import Config
from ...protocol.media import AUDIO, BASE64, FRAMES, IMAGE, MODALITIES, PIXELS, VIDEO, MediaSource
from ...protocol.topics.prompts import ChatPrompt, TextPrompt, TokenPrompt

if TYPE_CHECKING:
    from PIL.Image import Image

DATA = "multi_modal_data"
WAV = struct.Struct("<4sI4s4sIHHIIHH4sI")  # the header of a file, of which the samples follow
MOST_BYTES = (1 << 32) - 1 - 36  # of a file's samples; the header says both sizes in 32 bits
PICTURE, FILM = "image_pil", "video_pil"  # types of a conversation's parts
STAND_INS: dict[str, Any] = {  # for them, where JSON is made of a conversation
    PICTURE: {"type": "image_url", "image_url": {"url": "data:image/pil;base64,AA=="}},
    FILM: {"type": "video_url", "video_url": {"url": "data:video/pil;base64,AA=="}},
}
P = TypeVar("P", bound=TextPrompt | TokenPrompt)


class GivenPictures:
    """Reads them, by the options. ValueError says which cannot be."""

    def __init__(self, config: Config, rules: MediaRules | None) -> None:
        self._rules = rules
        self._pictures = Pictures(config)

    def with_data(self, prompt: P, data: object, index: int) -> P:
        """A prompt with what is in its `multi_modal_data`."""
        if data is None or data == {}:
            return prompt
        place = f"prompt {index}: {DATA}"
        if not isinstance(data, Mapping) or set(data) - set(MODALITIES):
            raise ValueError(f"{place}: a dict with some of the keys {', '.join(MODALITIES)} is taken")
        if self._rules is None or set(data) - set(self._rules.most):
            raise ValueError(f"{place}: this model takes {'text' if self._rules is None else self._rules.names} only")
        sources = [source for kind, given in data.items() for source in self._of_kind(kind, given, f"{place}.{kind}")]
        try:
            check_counts(sources, self._rules, place)
        except ApiError as error:
            raise ValueError(error.message) from None
        return msgspec.structs.replace(prompt, media=sources)

    def _of_kind(self, kind: str, given: object, place: str) -> list[MediaSource]:
        """One, or a list of several."""
        make = {IMAGE: self.source, VIDEO: self.film, AUDIO: sound_of}[kind]
        one = (kind == VIDEO and _is_film(given)) or (kind == AUDIO and _is_sound(given))
        listed = [given] if one or not isinstance(given, Sequence) else given
        return [make(one, f"{place}[{number}]") for number, one in enumerate(listed)]

    def film(self, given: object, place: str) -> MediaSource:
        """One film: a file's path, or its frames."""
        if isinstance(given, str | Path):
            try:
                data = Path(given).read_bytes()
            except OSError as error:
                raise ValueError(f"{place}: {given} cannot be read: {error.strerror}") from None
            return MediaSource(VIDEO, place, data=base64.b64encode(data), form=BASE64)
        if not isinstance(given, Sequence | np.ndarray) or not len(given):
            raise ValueError(f"{place}: a film is a list of pictures, an array of them, or a file's path")
        frames = []
        for number, one in enumerate(given):
            made = io.BytesIO()
            self._checked(one, f"{place}[{number}]").save(made, "PNG", compress_level=1)
            frames.append(base64.b64encode(made.getvalue()))
        return MediaSource(VIDEO, place, data=b",".join(frames), form=FRAMES)

    def source(self, given: object, place: str) -> MediaSource:
        """One picture."""
        picture = self._checked(given, place)
        return MediaSource(IMAGE, place, data=picture.tobytes(), form=PIXELS, width=picture.width)

    def _checked(self, given: object, place: str) -> Image:
        from PIL import Image

        if isinstance(given, np.ndarray):
            if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] not in (3, 4):
                raise ValueError(f"{place}: an array of a picture is uint8, of height, width and 3 or 4 colours")
            given = Image.fromarray(given)
        if not isinstance(given, Image.Image):
            raise ValueError(f"{place}: a picture is a PIL.Image or an array, not {type(given).__name__}")
        try:
            return self._pictures.checked(given)
        except MediaRefused as error:
            raise ValueError(f"{place}: {error}") from None

    def taken_out(self, conversation: Sequence[Any]) -> tuple[list[Any], list[MediaSource | None]]:
        """(a conversation that can be written as JSON, the picture or film of each of its parts that is one, in order;
        None for those that say themselves where they are).
        """
        messages: list[Any] = []
        found: list[MediaSource | None] = []
        for number, message in enumerate(conversation):
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(content, (list, tuple)):
                parts = [
                    self._part(part, f"messages[{number}].content[{at}]", found) for at, part in enumerate(content)
                ]
                message = {**message, "content": parts}
            messages.append(message)
        return messages, found

    def _part(self, part: Any, place: str, found: list[MediaSource | None]) -> Any:
        if not isinstance(part, Mapping) or "type" not in part:
            return part
        kind = part["type"]
        if kind not in STAND_INS:
            if kind in KNOWN:
                found.append(None)
            return part
        make = self.source if kind == PICTURE else self.film
        found.append(make(part.get(kind), f"{place}.{kind}"))
        return STAND_INS[kind]


def sound_of(given: object, place: str) -> MediaSource:
    """One sound: its samples, of one channel, and how many there are of a second."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(f"{place}: a sound is (samples, how many there are of a second)")
    samples, hertz = np.asarray(given[0]), _hertz(given[1], place)
    if samples.ndim != 1 or not samples.size or samples.dtype.kind not in "if":
        raise ValueError(f"{place}: the samples of a sound are an array of numbers, of one channel")
    if 4 * samples.size > MOST_BYTES:
        raise ValueError(f"{place}: a sound has at most {MOST_BYTES // 4} samples, not {samples.size}")
    if samples.dtype.kind == "i":
        samples = samples / -float(np.iinfo(samples.dtype).min)
    data = np.ascontiguousarray(samples, "<f4").tobytes()
    size = len(data)
    header = WAV.pack(b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 3, 1, hertz, 4 * hertz, 4, 32, b"data", size)
    return MediaSource(AUDIO, place, data=base64.b64encode(header + data), form=BASE64)


def _hertz(rate: Any, place: str) -> int:
    """A header has four times as many bytes of a second, in 32 bits."""
    try:
        hertz = int(rate)
    except (TypeError, ValueError, OverflowError):  # a number that is none, or infinite
        hertz = 0
    if not 0 < hertz < 1 << 30:
        raise ValueError(f"{place}: of a second there are at least 1 and fewer than 2**30 samples, not {rate!r}")
    return hertz


def _is_sound(given: object) -> bool:
    """Is it one, and not a tuple of several?"""
    return isinstance(given, tuple) and not all(isinstance(one, tuple) for one in given)


def _is_film(given: object) -> bool:
    """Is it one, and not a list of several?"""
    if isinstance(given, np.ndarray):
        return True
    first = given[0] if isinstance(given, Sequence) and len(given) and not isinstance(given, str) else None
    return not (isinstance(first, Sequence | Path) or (isinstance(first, np.ndarray) and first.ndim != 3))


def put_back(prompt: ChatPrompt, found: Sequence[MediaSource | None]) -> ChatPrompt:
    """The prompt with the pictures that were taken out of its conversation."""
    media = [picture or source for picture, source in zip(found, prompt.media, strict=True)] if prompt.media else []
    return msgspec.structs.replace(prompt, media=media)
