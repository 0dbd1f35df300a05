"""LLAMA_ARG_… of the environment, as images and compose files of llama-server have them: each is one of its options.

What an option's name means stands in other_servers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..config import ConfigError
from ..fields import flag, option_fields
from ..other_servers import KEY_VARIABLES, MEANINGS, Meaning, meaning_of
from .given import named_values
from .llama_server import SWITCHES, VARIABLES, WHERE_ON

PREFIX = "LLAMA_ARG_"
ON = ("1", "true", "on", "enabled")
OFF = ("0", "false", "off", "disabled")


def llama_values(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, tuple[str, object]]:
    """By field name: the variable, and its value as text, or what it stands for. What sets nothing is warned of."""
    found: dict[str, tuple[str, object]] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in KEY_VARIABLES or not text:
            continue
        name = variable.removeprefix(PREFIX)
        values = _option(VARIABLES.get(name, name.lower().replace("_", "-")), variable, text, warn)
        if values is None:
            warn(f"{variable}: no option of llama-server that is known; it sets nothing")
            continue
        for field, value in values.items():
            found.setdefault(field, (variable, value))
    return found


def llama_option(key: str, where: str, text: str, warn: Callable[[str], None]) -> dict[str, object] | None:
    """What a key of a preset sets, by field name: an option without its dashes, a short one, too, or a variable's name;
    None: there is no such option.
    """
    if key.startswith(PREFIX):
        name = key.removeprefix(PREFIX)
        return _option(VARIABLES.get(name, name.lower().replace("_", "-")), where, text, warn)
    return _option(_long_name(key), where, text, warn)


def _long_name(key: str) -> str:
    """A name with two dashes that means the same as this one with one."""
    short = MEANINGS.get(f"-{key}")
    if short is None or meaning_of(flag(key)) is not None or key.replace("-", "_") in option_fields():
        return key
    return next((name[2:] for name, one in MEANINGS.items() if one == short and name.startswith("--")), key)


def _option(option: str, where: str, text: str, warn: Callable[[str], None]) -> dict[str, object] | None:
    meaning = None if option.replace("-", "_") in option_fields() else meaning_of(flag(option))
    if meaning is None and option.replace("-", "_") not in option_fields():
        return None
    given = {option: text} if meaning is None else _given(where, option, text, meaning)
    return named_values(given, where, warn)


def _given(variable: str, option: str, text: str, meaning: Meaning) -> dict[str, object]:
    """The option with its value; of one without, itself or its opposite, if that says anything."""
    if option.startswith("no-"):
        return {option: True}
    is_switch = option in SWITCHES or meaning.fixed is not None
    if not is_switch and (not meaning.needless or meaning.takes):
        return {option: text}
    if text.lower() in OFF:
        says_something = option not in WHERE_ON and meaning_of(flag(f"no-{option}")) is not None
        return {f"no-{option}": True} if says_something else {}
    if is_switch and text.lower() not in ON:
        raise ConfigError(f"{variable}: {text} is neither 1 nor 0, true nor false")
    return {option: True}
