"""Parts of a content that are pictures, films or sounds, as clients of OpenAI and vLLM write them."""

from __future__ import annotations

import msgspec


class MediaUrl(msgspec.Struct):
    """Where it is: https://, http://, file://, or all of it in data:."""

    url: str | None = None
    detail: str | None = None  # models here see all of a picture
    uuid: str | None = None


class InputAudio(msgspec.Struct):
    """A sound in base64."""

    data: str
    format: str | None = None


class MediaFields(msgspec.Struct, kw_only=True):
    """Of a content's part: by its type one of them is there."""

    image_url: MediaUrl | str | None = None
    video_url: MediaUrl | str | None = None
    audio_url: MediaUrl | str | None = None
    input_audio: InputAudio | None = None
    file_id: str | None = None
    uuid: str | None = None
    detail: str | None = None
    place: str | None = None  # where it stands, and its field there, if another API's request was made a chat
    leaf: str | None = None
