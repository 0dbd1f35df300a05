"""--structured-outputs-config: how JSON of answers looks where requests say nothing. Its keys are vLLM's."""

from __future__ import annotations

from ..config import Config, ConfigError

OPTION = "--structured-outputs-config"
SWITCHES = ("disable_any_whitespace", "disable_additional_properties")
ELSEWHERE = {  # keys that ask for something else
    "reasoning_parser": "--reasoning-parser names it",
    "reasoning_parser_plugin": "--reasoning-parser-plugin names it",
    "enable_in_reasoning": "thinking is never held to what an answer has to be",
}
BACKEND = "backend"  # there is one


def structured_defaults(config: Config) -> frozenset[str]:
    """Which of SWITCHES are on. ConfigError names a key that cannot be."""
    given = config.json_object("structured_outputs_config")
    for key, value in given.items():
        if value in (False, "", None):
            continue
        if key in ELSEWHERE:
            raise ConfigError(f"{OPTION}: {key}: {ELSEWHERE[key]}")
        if key not in (*SWITCHES, BACKEND):
            raise ConfigError(f"{OPTION}: {key} is none of {', '.join((*SWITCHES, BACKEND))}")
        if key in SWITCHES and value is not True:
            raise ConfigError(f"{OPTION}: {key} is true or false, not {value}")
    return frozenset(key for key in SWITCHES if given.get(key) is True)
