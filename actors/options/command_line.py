"""Config's fields as command-line options, and all places that values come from.

`--config FILE.yaml` says least, variables ACTORSERVE_… of the environment more, the command line most. Config alone
says which options there are, of which type and with which help; this module knows none of them by name, but where
groups of them begin.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from .config import Config, ConfigError, make_config
from .fields import LEFT_OUT, OBJECTS, default, description, flag, integer, is_left_out, option_fields, plain_type, unit
from .names.given import merged
from .other_servers import KEY_VARIABLES
from .parser import Parser
from .serving.models import with_models
from .sources import CONFIG_VARIABLE, read_environment, read_yaml, warn

__all__ = ["add_options", "describe_options", "integer", "read_config"]

POSITIONAL = "model"
KEYS = ("api_key", "api_key_file", "key_file")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
OTHER_NAMES = {  # of our own
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "remote_engines": ("--engines",),  # another name: Config.engines says how many there are
}
GROUPS = {  # by the fields that begin them; what follows belongs to it, too
    "model": "server",
    "api_key": "keys, browsers, TLS",
    "enable_request_id_headers": "server",
    "tokenizer": "rendering",
    "files_dir": "files and batches",
    "limit_mm_per_prompt": "pictures and sounds",
    "dtype": "engine",
    "kv_cache_memory_bytes": "memory",
    "max_num_batched_tokens": "scheduling",
    "tensor_parallel_size": "computing",
    "enable_expert_parallel": "computing",
    "frontends": "actors",
}
SOURCES = """Every option may also stand in the file of --config, and in the environment: --max-num-seqs 16 is
ACTORSERVE_MAX_NUM_SEQS=16 there, lists have commas, and what is on or off is 1 or 0. The environment wins over
the file, and the command line over both. BYTES, TOKENS and N may have a unit: k, m, g and t count in thousands, K, M,
G, T and Ki, Mi, Gi, Ti in 1,024, and a B may stand behind: 4k is 4000, 4K, 4Ki and 4KiB are 4096. Names that users of
vLLM, SGLang and llama-server know (--model-path, --tp, --ctx-size ...) are taken, or refused with the reason."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser one option for each field of Config. What is not given leaves no trace in the result."""
    parser.usage = f"{parser.prog} [MODEL] [options]"
    parser.epilog = SOURCES
    if isinstance(parser, Parser):
        parser.other_servers = True
    groups: dict[str, Any] = {}
    group = parser
    for field in option_fields().values():
        if title := GROUPS.get(field.name):
            group = groups[title] if title in groups else groups.setdefault(title, parser.add_argument_group(title))
        help_text = _help(field).replace("%", "%%")
        if field.name == POSITIONAL:
            once: dict[str, Any] = {"action": _Once, "metavar": "MODEL", "default": argparse.SUPPRESS}
            group.add_argument(field.name, nargs="?", **once, help=help_text)
            group.add_argument(flag(field.name), dest=field.name, **(once | {"help": argparse.SUPPRESS}))
            said = "a YAML file of options, named as here without --"
            group.add_argument("--config", metavar="FILE", type=Path, help=said)
        else:
            names = [*OTHER_NAMES.get(field.name, ()), flag(field.name)]
            group.add_argument(
                *names, dest=field.name, **_arguments(field.name, plain_type(field.type)), help=help_text
            )


def describe_options() -> list[tuple[str, str]]:
    """(option, help) of every field, as tools/docs/options.md lists them; by its usual name where it has another."""
    return [
        (field.name.upper() if field.name == POSITIONAL else _usual(field.name), _description(field))
        for field in option_fields().values()
    ]


def _usual(name: str) -> str:
    """`--engines` of `remote_engines`; one letter and its kin are no names to look for."""
    return next((one for one in OTHER_NAMES.get(name, ()) if one.startswith("--")), flag(name))


def read_config(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Config:
    """All values together; ConfigError names the option, or the variable, that cannot be."""
    given = {name: value for name, value in vars(arguments).items() if name in option_fields()}
    values: dict[str, object] = {}
    if arguments.config is not None:
        values |= read_yaml(arguments.config)
    elif file := environ.get(CONFIG_VARIABLE):
        values |= read_yaml(Path(file), CONFIG_VARIABLE)
    values |= read_environment(environ) | given
    if not values.keys() & KEYS and (key := next(filter(None, map(environ.get, KEY_VARIABLES)), None)):
        values["api_key"] = [key]
    if POSITIONAL not in values:
        _check_lists(given)
    return make_config(with_models(values, warn))


def _check_lists(given: Mapping[str, object]) -> None:
    """An option of several values takes all words behind it, MODEL too: another model than that would be served."""
    for name, value in given.items():
        if not isinstance(value, list) or len(value) < 2:
            continue
        last = str(value[-1])
        if HUB_NAME.fullmatch(last) or Path(last).expanduser().is_dir():
            raise ConfigError(f"{flag(name)} took {last} for one of its values: write MODEL before the options.")


class _Once(argparse.Action):
    """MODEL, before the options or as one of them, as other servers have it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if values == "":  # a variable that is not set, say: not the packaged model is meant
            parser.error("MODEL: it is empty; without it the packaged demo model is served")
        before = getattr(namespace, self.dest, values)
        if before != values:
            parser.error(f"MODEL: there are two, {before} and {values}")
        setattr(namespace, self.dest, values)


class _Merged(argparse.Action):
    """A JSON object, of which each time some keys may be given."""

    takes_keys = True  # for the parser: --option.key VALUE is --option '{"key": VALUE}'

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        whole = merged(getattr(namespace, self.dest, None), values)
        setattr(namespace, self.dest, whole if isinstance(whole, str) else msgspec.json.encode(whole).decode())


def _integer_unless_left_out(name: str) -> Callable[[str], int | str]:
    """For an option that may be said to be left out; make_config knows the words."""
    return lambda text: text if is_left_out(name, text) else _integer(text)


def _integer(text: str) -> int:
    try:
        return integer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is {error}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None


def _description(field: inspect.Field) -> str:
    """With the default, where that says something."""
    value = field.default
    hidden = isinstance(value, bool) or not isinstance(value, str | int | float) or value == ""
    return description(field) if hidden else f"{description(field)} ({value})"


def _help(field: inspect.Field) -> str:
    """With the default, whatever it is, unless the words say what happens without the option."""
    value = default(field)
    if "if left out" in description(field):
        return description(field)
    if isinstance(value, bool):
        shown = "on" if value else "off"
    elif isinstance(value, list):
        shown = " ".join(map(str, value))
    else:
        shown = "" if value is None else str(value)
    return f"{description(field)} (default: {shown or 'none'})"


def _arguments(name: str, kind: inspect.Type) -> dict[str, Any]:
    """What argparse needs to know of a type."""
    common: dict[str, Any] = {"default": argparse.SUPPRESS}
    match kind:
        case inspect.BoolType():
            return common | {"action": argparse.BooleanOptionalAction}
        case inspect.LiteralType(values=values):
            return common | {"metavar": f"{{{','.join(map(str, values))}}}"}  # make_config looks at the value
        case inspect.IntType():
            kind_of = _integer_unless_left_out(name) if name in LEFT_OUT else _integer
            return common | {"type": kind_of, "metavar": unit(name)}
        case inspect.FloatType():
            return common | {"type": _number, "metavar": unit(name)}
        case inspect.ListType(item_type=item):
            return common | _arguments(name, plain_type(item)) | {"action": "extend", "nargs": "+"}
        case inspect.StrType() if name in OBJECTS:
            return common | {"action": _Merged, "metavar": "JSON"}
        case inspect.StrType():
            return common | {"metavar": "FILE" if name.endswith(("file", "certs", "record")) else "TEXT"}
    raise TypeError(f"no option can hold {kind}")
