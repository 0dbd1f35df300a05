"""--reasoning-config: how a model's thinking is ended where its budget is used up. Its keys are vLLM's; what begins
thinking, and ends it by itself, is the parser's matter.
"""

from __future__ import annotations

from ..config import Config, ConfigError

OPTION = "--reasoning-config"
START, END = "reasoning_start_str", "reasoning_end_str"


def closing_text(config: Config) -> str:
    """What is written there; nothing but the parser's mark if empty. ConfigError names what is no such key."""
    given = config.json_object("reasoning_config")
    for key, value in given.items():
        if key not in (START, END):
            hint = "; --reasoning-parser names the parser" if key == "reasoning_parser" else ""
            raise ConfigError(f"{OPTION}: {key} is none of {START} and {END}{hint}")
        if not isinstance(value, str):
            raise ConfigError(f"{OPTION}: {key} is a text, not {value}")
    return str(given.get(END, ""))
