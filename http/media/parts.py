"""Pictures, films and sounds of a conversation, taken out of it: what is left says only where they stand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from actorserve.actors.options.objects.media import MOST_MEDIA
from actorserve.actors.protocol.media import AUDIO, BASE64, CACHED, EMBEDS, FRAMES, IMAGE, VIDEO, MediaSource

from ..errors import ApiError, bad_request
from ..generation.fields.decoding import decode
from ..openai.schemas import ChatMessage, ContentPart
from ..settings import MediaRules
from .schemas import ProcessorChanges, ReadingChanges

URLS = {  # types of parts, with the modality and the field that has the address
    "image_url": (IMAGE, "image_url"),
    "input_image": (IMAGE, "image_url"),
    "image": (IMAGE, "image_url"),
    "video_url": (VIDEO, "video_url"),
    "video": (VIDEO, "video_url"),
    "audio_url": (AUDIO, "audio_url"),
    "audio": (AUDIO, "audio_url"),
}
OF_TRANSFORMERS = (IMAGE, VIDEO, AUDIO)  # types, and names of fields, of its own chat templates
INPUT_AUDIO, IMAGE_EMBEDS = "input_audio", "image_embeds"
KNOWN = (*URLS, INPUT_AUDIO, IMAGE_EMBEDS)
CHANGES, READING = "mm_processor_kwargs", "media_io_kwargs"
FRAMES_CHANGED = frozenset({"fps", "num_frames"})
DATA = re.compile(r"data:[^,]{0,200}?(;base64)?,", re.IGNORECASE)
LIST_OF_FRAMES = re.compile(r"data:(video|image)/jpe?g[;,]", re.IGNORECASE)  # of a film
ADDRESS = re.compile(r"https?://[^\s]", re.IGNORECASE)
LONGEST_URL = 8192  # characters of an address that is fetched
LONGEST_UUID = 256
WHITE = re.compile(r"[\x00-\x20\x7f]")


def is_media(part: ContentPart | str) -> bool:
    """Is this part of a content something else than text, of a type that is known?"""
    return not isinstance(part, str) and part.type in KNOWN


def take_media(
    body: bytes, messages: Sequence[ChatMessage], rules: MediaRules, changes: bytes
) -> tuple[bytes, list[MediaSource]]:
    """(the messages' JSON with `{"type": "image"}` and the like in the places of parts that are media, these in order).
    `changes`: how their request wants them processed.

    ApiError 400 names the part that cannot be.
    """
    sources: list[MediaSource] = []
    plain: list[dict[str, Any]] = msgspec.json.decode(body)
    for index, message in enumerate(messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, str) or not is_media(part):
                continue
            source = _source(part, part.place or f"messages[{index}].content[{number}]", rules)
            sources.append(source)
            plain[index]["content"][number] = {"type": source.modality}
    check_counts(sources, rules, "messages")
    if changes:
        sources = [msgspec.structs.replace(source, changes=changes) for source in sources]
    return msgspec.json.encode(plain), sources


def with_reading(
    changes: dict[str, Any] | None, reading: dict[str, Any] | None, rules: MediaRules | None
) -> dict[str, Any] | None:
    """`mm_processor_kwargs` with what `media_io_kwargs` says of films; where both say it, the first holds."""
    if not reading:
        return changes
    if rules is None:
        raise bad_request(f"{READING}: this model takes text only.", READING)
    _check_trusted(READING, rules)
    found = decode(ReadingChanges, msgspec.json.encode(reading), READING)
    frames: dict[str, Any] = {} if found.video is None else msgspec.to_builtins(found.video)
    if frames and not FRAMES_CHANGED.issubset(rules.changes):
        raise bad_request(f"{READING}.video: this model takes no films.", f"{READING}.video")
    return {**frames, **(changes or {})}


def checked_changes(given: dict[str, Any] | None, rules: MediaRules | None) -> bytes:
    """`mm_processor_kwargs` of a request, as JSON; none of it is empty."""
    if not given:
        return b""
    if rules is None:
        raise bad_request(f"{CHANGES}: this model takes text only.", CHANGES)
    _check_trusted(CHANGES, rules)
    found = decode(ProcessorChanges, msgspec.json.encode(given), CHANGES)
    for name in found.__struct_fields__:
        if getattr(found, name) is not None and name not in rules.changes:
            known = ", ".join(rules.changes) or "nothing of it"
            raise bad_request(f"{CHANGES}.{name} means nothing to this model; it knows {known}.", f"{CHANGES}.{name}")
    if found.largest() > rules.pixels:
        text = f"{CHANGES}: at most {rules.pixels} pixels are taken (--max-media-pixels)."
        raise bad_request(text, CHANGES)
    return msgspec.json.encode(found)


def _check_trusted(field: str, rules: MediaRules) -> None:
    if not rules.trusts_changes:
        raise bad_request(f"{field}: it is taken from requests only with --trust-request-mm-kwargs.", field)


def source_of_url(modality: str, url: str | None, field: str, local_files: bool, uuid: str = "") -> MediaSource:
    """What an address stands for; data: has all of it in it."""
    if not url:
        raise bad_request(f"{field}: there is no address.", field)
    if url[:5].lower() == "data:":
        found = DATA.match(url)
        if found is None or found[1] is None:
            raise bad_request(f"{field}: a data: address is data:TYPE;base64,DATA here.", field)
        listed = modality == VIDEO and LIST_OF_FRAMES.match(url)
        return _in_base64(modality, url[found.end() :], field, uuid, FRAMES if listed else BASE64)
    if url[:7].lower() == "file://":
        if not local_files:
            text = "files of the server are read only where it was started with --allowed-local-media-path."
            raise bad_request(f"{field}: {text}", field)
    elif not ADDRESS.match(url):
        raise bad_request(f"{field}: an address begins with https://, http:// or data:.", field)
    if len(url) > LONGEST_URL or WHITE.search(url):
        raise bad_request(f"{field}: an address has at most {LONGEST_URL} characters, and no spaces.", field)
    return MediaSource(modality, field, url=url, uuid=uuid)


def _source(part: ContentPart, path: str, rules: MediaRules) -> MediaSource:
    if part.type == IMAGE_EMBEDS:
        return _embeds(part, path, rules)
    modality, name = URLS.get(part.type, (AUDIO, INPUT_AUDIO))
    if part.type in OF_TRANSFORMERS:
        name = next((one for one in (name, part.type, "url") if getattr(part, one) is not None), name)
    check_modality(modality, part.type, path, rules)
    field = path if part.leaf == "" else f"{path}.{part.leaf or name}"
    if part.file_id is not None:
        raise bad_request(f"{field}: files are not kept here: send an address, or data:.", field)
    uuid = _uuid(part, path)
    if name == INPUT_AUDIO:
        if part.input_audio is None and uuid:
            return _cached(modality, field, uuid)
        if part.input_audio is None:
            raise bad_request(f"{field} is missing.", field)
        return _in_base64(AUDIO, part.input_audio.data, field, uuid)
    given = getattr(part, name)
    url = given if isinstance(given, str | None) else given.url
    if not url and uuid:
        return _cached(modality, field, uuid)
    return source_of_url(modality, url, field, rules.local_files, uuid)


def _cached(modality: str, field: str, uuid: str) -> MediaSource:
    """What was sent before, under this name."""
    return MediaSource(modality, field, form=CACHED, uuid=uuid)


def _embeds(part: ContentPart, path: str, rules: MediaRules) -> MediaSource:
    """Embeddings in the place of a picture."""
    check_modality(IMAGE, part.type, path, rules)
    field, uuid, given = f"{path}.{IMAGE_EMBEDS}", _uuid(part, path), part.image_embeds
    if not rules.embeds:
        raise bad_request(f"{field}: embeddings are taken where the server has --enable-mm-embeds.", field)
    if not given and uuid:
        return _cached(IMAGE, field, uuid)
    if not given:
        raise bad_request(f"{field} is missing.", field)
    tensors = {IMAGE_EMBEDS: given} if isinstance(given, str) else given
    return MediaSource(IMAGE, field, data=msgspec.json.encode(tensors), form=EMBEDS, uuid=uuid)


def check_modality(modality: str, kind: str, path: str, rules: MediaRules | None) -> None:
    """400 if the model does not take it."""
    if rules is None or modality not in rules.most:
        taken = "text only" if rules is None else f"{rules.names} only"
        raise bad_request(f"{path}: this model takes {taken}, not a part of type {kind!r}.", path)


def _uuid(part: ContentPart, path: str) -> str:
    nested = getattr(part, URLS.get(part.type, ("", INPUT_AUDIO))[1])
    uuid = part.uuid or getattr(nested, "uuid", None) or ""
    if len(uuid) > LONGEST_UUID:
        raise bad_request(f"{path}.uuid has more than {LONGEST_UUID} characters.", f"{path}.uuid")
    return uuid


def _in_base64(modality: str, text: str, field: str, uuid: str, form: str = BASE64) -> MediaSource:
    if not text.isascii():
        raise bad_request(f"{field}: its base64 has characters that are none of it.", field)
    return MediaSource(modality, field, data=text.encode(), form=form, uuid=uuid)


def check_counts(sources: Sequence[MediaSource], rules: MediaRules, field: str) -> None:
    """400 for more than are allowed."""
    for modality, count in Counter(source.modality for source in sources).items():
        if count > rules.most[modality]:
            text = f"{field}: {count} parts are of the kind {modality}, and at most {rules.most[modality]} are taken"
            raise bad_request(f"{text} (--limit-mm-per-prompt).", field)
    if len(sources) > MOST_MEDIA:
        raise bad_request(f"{field}: at most {MOST_MEDIA} pictures and sounds are taken in one.", field)


def check_text_size(parts: Sequence[bytes | None], most: int) -> None:
    """413 for texts that are longer than they may be beside pictures, which cross no ring."""
    check_text_length(sum(len(part) for part in parts if part), most)


def check_text_length(size: int, most: int) -> None:
    """The same of bytes."""
    if size > most:
        raise ApiError(413, f"The body without its pictures is longer than the {most} bytes of --max-body-bytes.")
