"""Pictures, films and sounds of SGLang's /generate: they go where the prompt has the model's own placeholders."""

from __future__ import annotations

from typing import Any

from actorserve.actors.protocol.media import AUDIO, IMAGE, VIDEO, MediaSource

from ..errors import bad_request
from ..media.parts import check_counts, check_modality, source_of_url
from ..settings import MediaRules
from .schemas import SglangGenerateRequest

FIELDS = {"image_data": IMAGE, "video_data": VIDEO, "audio_data": AUDIO}
ADDRESSES = ("http://", "https://", "file://", "data:")
FILES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".webp",
    ".gif",
    ".mp4",
    ".wav",
    ".mp3",
    ".flac",
    ".ogg",
)  # what names of them end with


def media_of(
    body: SglangGenerateRequest, prompts: int, many: bool, rules: MediaRules | None
) -> list[list[MediaSource]]:
    """Of each prompt. Of a batch a list has an entry for each: one, several or none; what is no list is for all."""
    made: list[list[MediaSource]] = [[] for _ in range(prompts)]
    for field, modality in FIELDS.items():
        given = getattr(body, field)
        if given in (None, [], ""):
            continue
        check_modality(modality, modality, field, rules)
        assert rules is not None, "it was checked"
        for at, (path, entries) in enumerate(_by_prompt(given, field, prompts, many)):
            made[at] += [_source(entry, modality, f"{path}[{n}]", rules) for n, entry in enumerate(entries)]
    if rules is not None:
        for sources in made:
            check_counts(sources, rules, next((one.field.partition("[")[0] for one in sources), ""))
    return made


def _by_prompt(given: Any, field: str, prompts: int, many: bool) -> list[tuple[str, list[Any]]]:
    """(where they stand, what one prompt has) of each."""
    if not isinstance(given, list):
        return [(field, [given])] * prompts
    if not many:
        return [(field, given)]
    if len(given) != prompts:
        raise bad_request(f"{field} has {len(given)} entries for {prompts} prompts.", field)
    lists = [one if isinstance(one, list) else [] if one is None else [one] for one in given]
    return [(f"{field}[{at}]", [entry for entry in one if entry is not None]) for at, one in enumerate(lists)]


def _source(entry: Any, modality: str, path: str, rules: MediaRules) -> MediaSource:
    url = entry.get("url") if isinstance(entry, dict) else entry
    if not isinstance(url, str) or not url:
        raise bad_request(f"{path}: it must be an address, a file's name or base64.", path)
    if url[:8].lower().startswith(ADDRESSES):
        return source_of_url(modality, url, path, rules.local_files)
    if url.lower().endswith(FILES):
        return source_of_url(modality, f"file://{url}", path, rules.local_files)
    return source_of_url(modality, f"data:;base64,{url}", path, rules.local_files)
