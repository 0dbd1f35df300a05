"""--structured-outputs-config: how JSON of answers looks where requests say nothing. Its keys are vLLM's."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ..config import Config, ConfigError

OPTION = "--structured-outputs-config"
SWITCHES = ("disable_any_whitespace", "disable_additional_properties")
ELSEWHERE = {  # keys that ask for something else
    "reasoning_parser_plugin": "--reasoning-parser-plugin names it",
    "enable_in_reasoning": "thinking is never held to what an answer has to be",
}
BACKENDS = ("backend", "disable_fallback")  # there is one
PARSER = "reasoning_parser"
KEYS = (*SWITCHES, *BACKENDS, PARSER)


def with_parser(values: dict[str, Any]) -> dict[str, Any]:
    """Options by field name, with the parser of thinking that the object names, where --reasoning-parser names none."""
    given = values.get("structured_outputs_config")
    if isinstance(given, str):
        with contextlib.suppress(msgspec.DecodeError):  # it is refused where it is read
            given = msgspec.json.decode(given)
    named = given.get(PARSER) if isinstance(given, dict) else None
    if not (named and isinstance(named, str)) or values.get(PARSER) not in (None, "auto"):
        return values
    return values | {PARSER: named}


def structured_defaults(config: Config) -> frozenset[str]:
    """Which of SWITCHES are on. ConfigError names a key that cannot be."""
    given = config.json_object("structured_outputs_config")
    for key, value in given.items():
        if value in (False, "", None):
            continue
        if key in ELSEWHERE:
            raise ConfigError(f"{OPTION}: {key}: {ELSEWHERE[key]}")
        if key not in KEYS:
            raise ConfigError(f"{OPTION}: {key} is none of {', '.join(KEYS)}")
        if key == PARSER and not isinstance(value, str):
            raise ConfigError(f"{OPTION}: {key} is a parser's name, not {value}")
        if key in SWITCHES and value is not True:
            raise ConfigError(f"{OPTION}: {key} is true or false, not {value}")
    return frozenset(key for key in SWITCHES if given.get(key) is True)
