"""Pictures and sounds of llama.cpp's prompts: they go where the text has a mark, in their order."""

from __future__ import annotations

import base64
import binascii

from actorserve.actors.protocol.media import AUDIO, IMAGE, MediaSource

from ..errors import bad_request
from ..media.parts import DATA, check_counts, check_modality, source_of_url
from ..settings import MediaRules
from .schemas import Prompt, PromptObject

MARKER = "<__media__>"
SOUNDS = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"fLaC", b"OggS")  # how their files begin
WAVE, WAVE_AT = b"WAVE", 8
HEAD = 16  # characters of base64 that have all of this


def media_of(prompt: Prompt, rules: MediaRules | None) -> list[list[MediaSource]]:
    """Of each prompt. ApiError names the one that cannot be, or that stands beside token ids."""
    if not isinstance(prompt, list):
        return [_of(prompt, "prompt", rules)]
    made = [_of(part, f"prompt[{at}]", rules) for at, part in enumerate(prompt) if isinstance(part, str | PromptObject)]
    if len(made) < len(prompt) and any(made):
        raise bad_request("prompt: multimodal_data goes with texts, not beside token ids.", "prompt")
    return made


def _of(prompt: str | PromptObject, path: str, rules: MediaRules | None) -> list[MediaSource]:
    given = [] if isinstance(prompt, str) else prompt.multimodal_data or []
    field = f"{path}.multimodal_data"
    entries = [given] if isinstance(given, str) else given
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
