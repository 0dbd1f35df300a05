"""Where options come from beside the command line: a YAML file, and variables ACTORSERVE_… of the environment.

Both give values by field name. A value that cannot be is refused with the name that its author knows it by.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

from .config import Config, ConfigError
from .fields import OBJECTS, canonical, flag, integer, is_left_out, option_fields, plain_type, trouble_with
from .names.environment import llama_values
from .names.given import named_values
from .other_servers import VARIABLES, meaning_of
from .parser import nearest

PREFIX = "ACTORSERVE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
SECRET_VARIABLE = f"{PREFIX}ENGINE_SECRET"  # in the place of --engine-secret-file: no option has it as it is
INJECTED = re.compile(r"\w+_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")  # by Kubernetes
ADDRESSES = ("tcp://", "udp://", "sctp://")  # a Service's, in NAME_PORT
WHOLE = ("api_key",)  # one text, in which a comma is a comma
MAY_BE_WHOLE = ("also",)  # the same, but where it is JSON
BOOLEANS = dict.fromkeys(("1", "true", "yes", "on", "enabled"), True)
BOOLEANS |= dict.fromkeys(("0", "false", "no", "off", "disabled"), False)


def read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """The options that variables set; an empty one sets nothing. What sets no option is warned of.

    Of other servers' variables those that stand for one of ours, and llama-server's; ours win over them. Kubernetes
    tells of a Service whose name begins as ours do in variables of its own, which set nothing.
    """
    known = option_fields()
    fields = {variable(name): field for name, field in known.items()}
    fields |= {theirs: known[ours] for theirs, ours in VARIABLES.items()}
    values: dict[str, object] = {}
    for name, text in sorted(environ.items(), key=lambda one: (one[0] in VARIABLES, one[0])):
        if name in (CONFIG_VARIABLE, SECRET_VARIABLE) or not (name.startswith(PREFIX) or name in VARIABLES):
            continue
        if INJECTED.fullmatch(name) or (name.endswith("_PORT") and text.startswith(ADDRESSES)):
            continue
        if name not in fields:
            near = nearest(name, [*fields, CONFIG_VARIABLE], PREFIX)
            warn(f"{name}: there is no such option{near}")
        elif text:
            values.setdefault(fields[name].name, value_of(name, fields[name], text))
    theirs = llama_values(environ, warn)
    return {name: value_of(variable, known[name], value) for name, (variable, value) in theirs.items()} | values


def variable(name: str) -> str:
    """The variable that sets a field."""
    return PREFIX + name.upper()


def value_of(name: str, field: inspect.Field, text: object) -> object:
    """A field's value as a text says it; `name` is by which its author knows it."""
    if not isinstance(text, str):
        return text
    kind = plain_type(field.type)
    value: object = text
    try:
        if isinstance(kind, inspect.ListType):
            value = [_scalar(plain_type(kind.item_type), item) for item in items_of(field.name, text)]
        else:
            value = canonical(field.name, text if is_left_out(field.name, text) else _scalar(kind, text))
        return msgspec.convert(value, _hints()[field.name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {trouble_with(field.name, value, str(error))}") from None
    except ValueError as error:
        raise ConfigError(f"{name}: {text} is {error}") from None


@cache
def _hints() -> Mapping[str, Any]:
    """The types of Config's fields: 7 ms, in each process for each option of --also."""
    return get_type_hints(Config, include_extras=True)


def items_of(name: str, text: str) -> list[str]:
    """A list is written with commas, or as JSON, and one object is an item; ValueError if it is none."""
    if name in WHOLE or text.startswith("{") or (name in MAY_BE_WHOLE and not text.startswith("[")):
        return [text]
    if text.startswith("["):
        try:
            return [item_of(item) for item in msgspec.json.decode(text, type=list[str | int | dict[str, Any]])]
        except msgspec.DecodeError:
            raise ValueError("no list") from None
    return [item.strip() for item in text.split(",") if item.strip()]


def item_of(value: object) -> str:
    """An item of a list as the text that it is on the command line."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


def _scalar(kind: inspect.Type, text: str) -> object:
    """One value as its text says it; ValueError says what it is not."""
    match kind:
        case inspect.BoolType():
            if text.lower() not in BOOLEANS:
                raise ValueError("neither 1 nor 0, true nor false")
            return BOOLEANS[text.lower()]
        case inspect.IntType():
            return integer(text)
        case inspect.FloatType():
            try:
                return float(text)
            except ValueError:
                raise ValueError("not a number") from None
    return text


def read_yaml(path: Path, named: str = "--config", told: Callable[[str], None] | None = None) -> dict[str, object]:
    """The file's options by field name; `max-num-seqs` and `max_num_seqs` are the same. `named` names the file; `told`
    gets the warnings, if not whoever starts a command.
    """
    try:
        content = _load_yaml(path)
    except ValueError as error:
        raise ConfigError(f"{named}: {path} cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{named}: {path} holds no mapping of options to values")
    fields = option_fields()
    given = named_values({str(key): value for key, value in content.items()}, f"{named}: {path}", told or warn)
    return {name: _yaml_value(fields[name], value) for name, value in given.items()}


def _load_yaml(path: Path) -> Any:
    """What is in it; ValueError says in one line why it cannot be read, also if a name is there twice."""
    import yaml

    try:
        loader = yaml.SafeLoader(path.expanduser().read_text(encoding="utf-8"))
        root = loader.get_single_node()
        seen = set()
        for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
            if isinstance(name, yaml.ScalarNode) and name.value in seen:  # PyYAML takes the last, and says nothing
                raise ValueError(f"{name.value} is there twice (line {name.start_mark.line + 1})")
            seen.add(str(name.value))
            if _is_text(str(name.value)):
                _take_as_text(value)
        return None if root is None else loader.construct_document(root)
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise ValueError(f"{error.problem}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _take_as_text(node: Any) -> None:
    """A key 0123 or a name 1.10 as it is written: as YAML's number it would be another one."""
    import yaml

    for one in node.value if isinstance(node, yaml.SequenceNode) else (node,):
        if isinstance(one, yaml.ScalarNode) and not one.tag.endswith(":null"):
            one.tag = "tag:yaml.org,2002:str"


def warn(text: str) -> None:
    """To whoever starts a command."""
    print(f"actorserve: warning: {text}", file=sys.stderr)


def _yaml_value(field: inspect.Field, value: object) -> object:
    """YAML knows its types; what Helm or envsubst has quoted is read as in the environment. A single item is a list."""
    kind = plain_type(field.type)
    if isinstance(kind, inspect.ListType) and value is not None:
        items = value if isinstance(value, list) else [value]
        return [
            _yaml_scalar(plain_type(kind.item_type), item_of(one) if isinstance(one, dict) else one) for one in items
        ]
    return canonical(field.name, value if is_left_out(field.name, value) else _yaml_scalar(kind, value))


def _yaml_scalar(kind: inspect.Type, value: object) -> object:
    """What is no value of this type stays: make_config says what it may be."""
    if not isinstance(value, str):
        return value
    try:
        return _scalar(kind, value)
    except ValueError:
        return value


def _is_text(key: str) -> bool:
    """Is it the name of an option whose value, or each of its values, is a text? That of an object's key may be any."""
    name = key.replace("-", "_")
    if name not in (fields := option_fields()):
        meaning = meaning_of(flag(name))
        name = meaning.field if meaning and meaning.fixed is None and not meaning.key else ""
    if name not in fields or (name in OBJECTS and "." in key):
        return False
    kind = plain_type(fields[name].type)
    return isinstance(plain_type(kind.item_type) if isinstance(kind, inspect.ListType) else kind, inspect.StrType)
