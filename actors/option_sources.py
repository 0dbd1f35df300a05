"""Where options come from beside the command line: a YAML file, and variables ACTORSERVE_… of the environment.

Both give values by field name. A value that cannot be is refused with the name that its author knows it by.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec
from msgspec import inspect

from .arguments import nearest
from .config import Config, ConfigError
from .option_fields import flag, integer, option_fields, plain_type

PREFIX = "ACTORSERVE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
WHOLE = ("api_key",)  # one text, in which a comma is a comma
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """The options that variables set; an empty one sets nothing. What sets no option is warned of."""
    fields = {variable(name): field for name, field in option_fields().items()}
    values: dict[str, object] = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        if name not in fields:
            near = nearest(name, [*fields, CONFIG_VARIABLE], PREFIX)
            print(f"actorserve: warning: {name}: there is no such option{near}", file=sys.stderr)
        elif text:
            values[fields[name].name] = _environment_value(name, fields[name], text)
    return values


def variable(name: str) -> str:
    """The variable that sets a field."""
    return PREFIX + name.upper()


def _environment_value(name: str, field: inspect.Field, text: str) -> object:
    kind = plain_type(field.type)
    try:
        value: object
        if isinstance(kind, inspect.ListType):
            value = [_scalar(plain_type(kind.item_type), item) for item in _items(field.name, text)]
        else:
            value = _scalar(kind, text)
        return msgspec.convert(value, get_type_hints(Config, include_extras=True)[field.name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{name}: {text} is {error}") from None


def _items(name: str, text: str) -> list[str]:
    """A list is written with commas, or as JSON."""
    if name in WHOLE:
        return [text]
    if text.startswith("["):
        try:
            return [str(item) for item in msgspec.json.decode(text, type=list[str | int])]
        except msgspec.DecodeError:
            raise ValueError("no list") from None
    return [item.strip() for item in text.split(",")]


def _scalar(kind: inspect.Type, text: str) -> object:
    """One value as its text says it; ValueError says what it is not."""
    match kind:
        case inspect.BoolType():
            if text.lower() not in BOOLEANS:
                raise ValueError("neither 1 nor 0, true nor false")
            return BOOLEANS[text.lower()]
        case inspect.IntType():
            return whole_number(text)
        case inspect.FloatType():
            try:
                return float(text)
            except ValueError:
                raise ValueError("not a number") from None
    return text


def whole_number(text: str) -> int:
    """`integer`, whose error says what the text is not."""
    try:
        return integer(text)
    except ValueError:
        raise ValueError("not a whole number") from None


def read_yaml(path: Path, named: str = "--config") -> dict[str, object]:
    """The file's options by field name; `max-num-seqs` and `max_num_seqs` are the same. `named` names the file."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{named}: {path} cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{named}: {path} holds no mapping of options to values")
    fields = option_fields()
    values: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in fields:
            near = nearest(name.replace("_", "-"), [one.replace("_", "-") for one in fields])
            raise ConfigError(f"{named}: {path} sets {key}, and there is no such option{near}")
        values[name] = _yaml_value(name, fields[name], value)
    return values


def _yaml_value(name: str, field: inspect.Field, value: object) -> object:
    """YAML knows its types; only numbers with a unit and single list items are written as on the command line."""
    kind = plain_type(field.type)
    if isinstance(kind, inspect.IntType) and isinstance(value, str):
        try:
            return whole_number(value)
        except ValueError as error:
            raise ConfigError(f"{flag(name)}: {value} is {error}") from None
    if isinstance(kind, inspect.ListType) and isinstance(value, str):
        return [value]
    return value
