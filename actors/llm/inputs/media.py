"""Pictures that scripts give: objects of Pillow, or arrays, in `multi_modal_data` or in a conversation's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from actorserve.http.errors import ApiError
from actorserve.http.media.parts import check_counts
from actorserve.http.settings import MediaRules

from ...media.pictures import Pictures
from ...media.refused import MediaRefused
from ...options.config import Config
from ...protocol.media import IMAGE, PIXELS, MediaSource
from ...protocol.messages import ChatPrompt, TextPrompt, TokenPrompt

if TYPE_CHECKING:
    from PIL.Image import Image

DATA = "multi_modal_data"
PICTURE = "image_pil"  # the type of a conversation's part
STANDS_FOR = "data:image/pil;base64,AA=="  # it, where JSON is made of a conversation
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
        if not isinstance(data, Mapping) or set(data) - {IMAGE}:
            raise ValueError(f"{place}: a dict with the key {IMAGE!r} is taken")
        given = data[IMAGE]
        listed = given if isinstance(given, Sequence) else [given]
        sources = [self.source(one, f"{place}.{IMAGE}[{number}]") for number, one in enumerate(listed)]
        if self._rules is None or IMAGE not in self._rules.most:
            raise ValueError(f"{place}: this model takes text only")
        try:
            check_counts(sources, self._rules, place)
        except ApiError as error:
            raise ValueError(error.message) from None
        return msgspec.structs.replace(prompt, media=sources)

    def source(self, given: object, place: str) -> MediaSource:
        """One picture."""
        from PIL import Image

        if isinstance(given, np.ndarray):
            if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] not in (3, 4):
                raise ValueError(f"{place}: an array of a picture is uint8, of height, width and 3 or 4 colours")
            given = Image.fromarray(given)
        if not isinstance(given, Image.Image):
            raise ValueError(f"{place}: a picture is a PIL.Image or an array, not {type(given).__name__}")
        try:
            picture: Image.Image = self._pictures.checked(given)
        except MediaRefused as error:
            raise ValueError(f"{place}: {error}") from None
        return MediaSource(IMAGE, place, data=picture.tobytes(), form=PIXELS, width=picture.width)

    def taken_out(self, conversation: Sequence[Any]) -> tuple[list[Any], list[MediaSource | None]]:
        """(a conversation that can be written as JSON, the picture of each of its parts that is one, in order; None for
        those that say themselves where they are).
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
        if not isinstance(part, Mapping) or part.get("type") in (None, "text"):
            return part
        if part["type"] != PICTURE:
            found.append(None)
            return part
        found.append(self.source(part.get(PICTURE), f"{place}.{PICTURE}"))
        return {"type": "image_url", "image_url": {"url": STANDS_FOR}}


def put_back(prompt: ChatPrompt, found: Sequence[MediaSource | None]) -> ChatPrompt:
    """The prompt with the pictures that were taken out of its conversation."""
    media = [picture or source for picture, source in zip(found, prompt.media, strict=True)] if prompt.media else []
    return msgspec.structs.replace(prompt, media=media)
