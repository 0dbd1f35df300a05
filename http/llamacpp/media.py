"""Pictures and sounds of llama.cpp's prompts: they go where the text has a mark, in their order."""

from __future__ import annotations

import base64
import binascii

from actorserve.actors.protocol.media import AUDIO, IMAGE, MediaSource

from ..errors import bad_request
from ..media.parts import DATA, check_counts, check_modality, check_text_length, source_of_url
from ..settings import MediaRules
from .schemas import Prompt, PromptObject

MARKER = "<__media__>"
FIELD = b"multimodal_data"  # without it in a body there is nothing but text
SOUNDS = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"fLaC", b"OggS")  # how their files begin
WAVE, WAVE_AT = b"WAVE", 8
HEAD = 16  # characters of base64 that have all of this


def check_rest(raw: bytes, prompt: Prompt, most: int) -> None:
    """413 for a body that is longer without its pictures than any other may be, before anything else walks it."""
    if len(raw) > most:
        if isinstance(prompt, list):
            check_text_length(len(prompt) * 2, most)  # with a comma behind each, however many these are
        pictures = sum(len(entry) for one in _objects(prompt) for entry in _entries(one))
        check_text_length(len(raw) - pictures, most)


def _objects(prompt: Prompt) -> list[PromptObject]:
    """Those of a prompt, of which most lists have none: these may be of millions of ids."""
    if not isinstance(prompt, list):
        return [] if isinstance(prompt, str) else [prompt]
    if PromptObject not in set(map(type, prompt)):
        return []
    return [one for one in prompt if type(one) is PromptObject]


def _entries(prompt: PromptObject) -> list[str]:
    given = prompt.multimodal_data or []
    return [given] if isinstance(given, str) else given


def media_of(prompt: Prompt, rules: MediaRules | None) -> list[list[MediaSource]]:
    """Of each prompt; nothing where none has any. ApiError names one that cannot be, or that is beside token ids."""
    if not isinstance(prompt, list):
        return [_of(prompt, "prompt", rules)]
    if not _objects(prompt):
        return []
    made = [_of(part, f"prompt[{at}]", rules) for at, part in enumerate(prompt) if isinstance(part, str | PromptObject)]
    if len(made) < len(prompt) and any(made):
        raise bad_request("prompt: multimodal_data goes with texts, not beside token ids.", "prompt")
    return made


def _of(prompt: str | PromptObject, path: str, rules: MediaRules | None) -> list[MediaSource]:
    field = f"{path}.multimodal_data"
    entries = [] if isinstance(prompt, str) else _entries(prompt)
    sources = [_source(entry, f"{field}[{at}]", rules) for at, entry in enumerate(entries)]
    if rules is not None:
        check_counts(sources, rules, field)
    return sources


def _source(entry: str, path: str, rules: MediaRules | None) -> MediaSource:
    found = DATA.match(entry[:256])
    modality = _modality(entry[found.end() :] if found else entry)
    check_modality(modality, modality, path, rules)
    return source_of_url(modality, entry if found else f"data:;base64,{entry}", path, False)


def _modality(data: str) -> str:
    """As its first bytes say; what is none of both is told by whoever reads it."""
    try:
        head = base64.b64decode(data[:HEAD])
    except (binascii.Error, ValueError):
        return IMAGE
    return AUDIO if head.startswith(SOUNDS) or head[WAVE_AT : WAVE_AT + len(WAVE)] == WAVE else IMAGE
