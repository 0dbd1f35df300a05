"""`tokenization_kwargs` of scripts, under the names that vLLM's users know: how prompts become tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.topics.prompts import ChatPrompt, TextPrompt
from .prompts import Cut, GivenPrompt

FIELD = "tokenization_kwargs"
NAMES = ("truncate_prompt_tokens", "truncation", "max_length", "truncation_side", "add_special_tokens", "padding")


def tokenized(given: list[GivenPrompt], how: Mapping[str, Any] | None) -> list[GivenPrompt]:
    """The prompts, each with what `how` asks for; ValueError says what cannot be."""
    cut, special = cut_of(how), (how or {}).get("add_special_tokens")
    return [_one(prompt, special, cut) for prompt in given]


def _one(given: GivenPrompt, special: bool | None, cut: Cut | None) -> GivenPrompt:
    prompt = given.prompt
    if special is not None and isinstance(prompt, TextPrompt | ChatPrompt):
        prompt = msgspec.structs.replace(prompt, add_special_tokens=bool(special))
    return given._replace(prompt=prompt, cut=cut)


def cut_of(how: Mapping[str, Any] | None) -> Cut | None:
    """What is kept of a prompt that is longer; None: one that is too long is refused."""
    how = how or {}
    if unknown := next((name for name in how if name not in NAMES), None):
        raise ValueError(f"{FIELD}: {unknown} is none of {', '.join(NAMES)}")
    if how.get("padding") not in (None, False, "do_not_pad"):
        raise ValueError(f"{FIELD}: padding is of no use: prompts are computed as long as they are")
    if (side := how.get("truncation_side")) not in (None, "left", "right"):
        raise ValueError(f"{FIELD}: truncation_side is left or right, not {side!r}")
    most = _most(*(how.get(name) for name in NAMES[:3]))
    return None if most is None else Cut(most, side)


def _most(most: Any, truncation: Any, longest: Any) -> int | None:
    if truncation in (True, "longest_first"):
        most = -1 if longest is None else longest
    elif truncation in (False, "do_not_truncate"):
        return None
    elif truncation is not None:
        raise ValueError(f"{FIELD}: truncation is true or false, not {truncation!r}")
    elif longest is not None:
        raise ValueError(f"{FIELD}: max_length says how many tokens are kept with truncation=True")
    if most is None or (type(most) is int and (most == -1 or most > 0)):
        return most
    raise ValueError(f"{FIELD}: -1 or at least 1 tokens are kept, not {most!r}")
