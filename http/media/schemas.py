"""Parts of a content that are pictures, films or sounds, as clients of OpenAI and vLLM write them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MediaUrl(msgspec.Struct):
    """Where it is: https://, http://, file://, or all of it in data:."""

    url: str | None = None
    detail: str | None = None  # models here see all of a picture
    uuid: str | None = None


class InputAudio(msgspec.Struct):
    """A sound in base64."""

    data: str
    format: str | None = None


Embeds = str | dict[str, str] | None  # base64 of a tensor that torch.save has written, or several by name


class PixelBounds(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Of pictures, in pixels."""

    shortest_edge: Annotated[int, Meta(ge=1)]
    longest_edge: Annotated[int, Meta(ge=1)]


class ProcessorChanges(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`mm_processor_kwargs` of a request, by transformers' names. Which of them a model knows: actors/model/media.py"""

    size: PixelBounds | None = None
    min_pixels: Annotated[int, Meta(ge=1)] | None = None
    max_pixels: Annotated[int, Meta(ge=1)] | None = None
    do_pan_and_scan: bool | None = None
    pan_and_scan_max_num_crops: Annotated[int, Meta(ge=1, le=16)] | None = None
    crop_to_patches: bool | None = None
    min_patches: Annotated[int, Meta(ge=1, le=64)] | None = None
    max_patches: Annotated[int, Meta(ge=1, le=64)] | None = None
    do_image_splitting: bool | None = None
    fps: Annotated[float, Meta(gt=0, le=60)] | None = None
    num_frames: Annotated[int, Meta(ge=1, le=768)] | None = None

    def largest(self) -> int:
        """Of all that it says of pixels."""
        bounds = (self.size.shortest_edge, self.size.longest_edge) if self.size else ()
        return max(*bounds, self.min_pixels or 0, self.max_pixels or 0)


class FrameChanges(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`video` of a request's `media_io_kwargs`."""

    num_frames: Annotated[int, Meta(ge=1, le=768)] | None = None
    fps: Annotated[float, Meta(gt=0, le=60)] | None = None


class ReadingChanges(msgspec.Struct, forbid_unknown_fields=True):
    """`media_io_kwargs` of a request, as vLLM has it. All else of how files are read is the operator's."""

    video: FrameChanges | None = None


class MediaFields(msgspec.Struct, kw_only=True):
    """Of a content's part: by its type one of them is there."""

    image_url: MediaUrl | str | None = None
    video_url: MediaUrl | str | None = None
    audio_url: MediaUrl | str | None = None
    image: MediaUrl | str | None = None  # these four are what transformers calls the same, of types without _url
    video: MediaUrl | str | None = None
    audio: MediaUrl | str | None = None
    url: str | None = None
    input_audio: InputAudio | None = None
    image_embeds: Embeds = None
    file_id: str | None = None
    uuid: str | None = None
    detail: str | None = None
    # where it stands, and its field there ("": itself), if another API's request was made a chat
    place: str | None = None
    leaf: str | None = None
