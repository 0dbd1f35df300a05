"""--speculative-config: a JSON object with vLLM's names, checked where options are. Leaf module."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .config import Config, ConfigError
from .parser import nearest

OPTION = "--speculative-config"
DEFAULT_LOOKUP = 5  # tokens, where neither bound is given

Drafts = Annotated[int, Meta(ge=1, le=32)]
Ending = Annotated[int, Meta(ge=1, le=64)]


class NgramOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="ngram"
):
    """Drafts are what followed the last tokens when they came before."""

    num_speculative_tokens: Drafts
    prompt_lookup_max: Ending | None = None
    prompt_lookup_min: Ending | None = None

    @property
    def lookup(self) -> tuple[int, int]:
        """(fewest, most) tokens that have to match; one bound stands for both."""
        most = self.prompt_lookup_max or self.prompt_lookup_min or DEFAULT_LOOKUP
        return self.prompt_lookup_min or most, most


class DraftModelOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="draft_model"
):
    """Drafts are what a smaller model says."""

    model: str
    num_speculative_tokens: Drafts


Speculative = NgramOptions | DraftModelOptions
METHODS = ("ngram", "draft_model")


def read_speculative(config: Config) -> Speculative | None:
    """What is configured; ConfigError names the key that is wrong."""
    text = config.speculative_config
    if text is None:
        return None
    try:
        values: Any = msgspec.json.decode(text)
        if isinstance(values, dict) and "method" not in values and "model" in values:
            values = {"method": "draft_model", **values}
        found: Speculative = msgspec.convert(values, NgramOptions | DraftModelOptions)
    except msgspec.ValidationError as error:
        if trouble := _unknown_method(values) or _unknown_key(values):
            raise ConfigError(f"{OPTION}: {trouble}") from None
        message, _, path = str(error).partition(" - at `$")
        key = path.strip(".`")
        raise ConfigError(f"{OPTION}: {f'{key}: ' if key else ''}{message}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{OPTION}: {text} is no JSON ({error})") from None
    if isinstance(found, NgramOptions) and found.lookup[0] > found.lookup[1]:
        raise ConfigError(
            f"{OPTION}: prompt_lookup_min: {found.lookup[0]} is more than prompt_lookup_max, {found.lookup[1]}"
        )
    return found


def _unknown_method(values: Any) -> str:
    """What is wrong with the method, if that is it."""
    given = values.get("method") if isinstance(values, dict) else None
    if given in METHODS or not isinstance(given, str):
        return ""
    return f"method: {given} is none of {', '.join(METHODS)}{nearest(given, METHODS)}"


def _unknown_key(values: Any) -> str:
    """Which key the method does not have, if that is wrong."""
    if not isinstance(values, dict) or values.get("method") not in METHODS:
        return ""
    known = ("method", *(NgramOptions if values["method"] == "ngram" else DraftModelOptions).__struct_fields__)
    wrong = next((key for key in values if key not in known), None)
    return "" if wrong is None else f"{wrong} is none of {', '.join(known)}{nearest(wrong, known)}"


def count_drafts(config: Config) -> int:
    """Drafts of a row in a step, at most."""
    found = read_speculative(config)
    return found.num_speculative_tokens if found else 0
