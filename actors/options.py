"""Config's fields as command-line options, and the three places that values come from.

The command line wins over `--config FILE.yaml`, and that over the environment. Config alone says which options there
are, of which type and with which help; this module knows none of them by name but `model` and `api_key`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from .config import Config, ConfigError, make_config

API_KEY_VARIABLE = "ACTORSERVE_API_KEY"
POSITIONAL = "model"
SHORT = {"tensor_parallel_size": ("-tp",)}
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser one option for each field of Config. What is not given leaves no trace in the result."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file of options, named as here without --")
    for field in _fields().values():
        kind = _plain_type(field.type)
        help_text = _help(field).replace("%", "%%")
        if field.name == POSITIONAL:
            parser.add_argument(field.name, nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=help_text)
        else:
            names = [*SHORT.get(field.name, ()), _flag(field.name)]
            parser.add_argument(*names, **_arguments(kind), help=help_text)


def describe_options() -> list[tuple[str, str]]:
    """(option, help) of every field, as the README lists them."""
    return [
        (field.name.upper() if field.name == POSITIONAL else _flag(field.name), _help(field))
        for field in _fields().values()
    ]


def read_config(arguments: argparse.Namespace) -> Config:
    """All values together; ConfigError names the option that cannot be."""
    given = {name: value for name, value in vars(arguments).items() if name in _fields()}
    values: dict[str, object] = {}
    if key := os.environ.get(API_KEY_VARIABLE):
        values["api_key"] = [key]
    if arguments.config is not None:
        values |= _read_yaml(arguments.config)
    return make_config(values | given)


def integer(text: str) -> int:
    """`4096`, or with a unit: `4k` is 4000, `4K` is 4096, and so on for m and g."""
    factor = UNITS.get(text[-1:], 1)
    return int(text if factor == 1 else text[:-1]) * factor


def _fields() -> dict[str, inspect.Field]:
    info = inspect.type_info(Config)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain_type(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without None."""
    if isinstance(kind, inspect.Metadata):
        return _plain_type(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _plain_type(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
    return kind


def _help(field: inspect.Field) -> str:
    assert isinstance(field.type, inspect.Metadata), f"{field.name} has no description"
    text: str = (field.type.extra_json_schema or {})["description"]
    hidden = isinstance(field.default, bool) or field.default in (msgspec.NODEFAULT, None, "")
    return text if hidden else f"{text} ({field.default})"


def _arguments(kind: inspect.Type) -> dict[str, Any]:
    """What argparse needs to know of a type."""
    common: dict[str, Any] = {"default": argparse.SUPPRESS}
    match kind:
        case inspect.BoolType():
            return common | {"action": argparse.BooleanOptionalAction}
        case inspect.LiteralType(values=values):
            return common | {"choices": values}
        case inspect.IntType():
            return common | {"type": integer, "metavar": "N"}
        case inspect.FloatType():
            return common | {"type": float, "metavar": "X"}
        case inspect.ListType():
            return common | {"action": "extend", "nargs": "+", "metavar": "TEXT"}
        case inspect.StrType():
            return common | {"metavar": "TEXT"}
    raise TypeError(f"no option can hold {kind}")


def _read_yaml(path: Path) -> dict[str, object]:
    """The file's options by field name; `max-num-seqs` and `max_num_seqs` are the same."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config: {path} holds no mapping of options to values")
    fields = _fields()
    values: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in fields:
            raise ConfigError(f"--config: {path} sets {key}, and there is no such option")
        values[name] = _yaml_value(name, fields[name], value)
    return values


def _yaml_value(name: str, field: inspect.Field, value: object) -> object:
    """YAML knows its types; only numbers with a unit and single list items are written as on the command line."""
    kind = _plain_type(field.type)
    if isinstance(kind, inspect.IntType) and isinstance(value, str):
        try:
            return integer(value)
        except ValueError:
            raise ConfigError(f"{_flag(name)}: {value} is not a whole number") from None
    if isinstance(kind, inspect.ListType) and isinstance(value, str):
        return [value]
    return value
