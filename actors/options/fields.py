"""Config's fields as all its sources see them: by name, with their types, units, words of help, and what they may be.

Leaf module beside config.py, which alone with its groups says what options there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from .config import MEDIA_OBJECTS, OTHER_OBJECTS, Config
from .other_servers import AUTOMATIC, VALUES
from .parser import nearest

NUMBER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?) ?(?:([kKmMgGtT])([iI]?))?[bB]?")
POWERS = "kmgt"
NO_INTEGER = "not a whole number, such as 4096, 4k (4000), 4K or 4Ki (4096)"
NO_OPTIONS = ("keys_of_file", "models_found", "unserved")  # the fields that are none
SECRETS = ("api_key", "admin_api_key")  # messages are seen: they do not say these
LEFT_OUT: dict[str, tuple[str, ...]] = {  # values of options that others have by default, where nothing is named
    **{name: tuple(one for one in values if one != "0") for name, values in AUTOMATIC.items()},
    "worker_cls": ("", "none", "auto"),
    **dict.fromkeys(("worker_extension_cls", "io_processor_plugin"), ("", "none")),
    **dict.fromkeys(("tool_parser_plugin", "reasoning_parser_plugin"), ("", "none")),
}
NOT_SERVED: dict[str, dict[str, str]] = {  # of options: values that others have, and what serves instead
    "kv_cache_dtype": {
        "fp8_e5m2": "fp8 is e4m3 here, which keeps keys and values closer",
        "fp8_ds_mla": "a model of latents (MLA) keeps them in the type that it computes in: auto, or float16 on a CPU",
        "fp8_inc": "it is for Gaudi; int8 has 8 bits on a CPU, fp8 on a GPU",
        **dict.fromkeys(("q8_0", "q5_0", "q5_1"), "int8 has 8 bits and a scale, on a CPU"),
    },
}
OBJECTS = (  # of JSON: what is given in parts is one
    *("speculative_config", "pooler_config", "kv_events_config"),
    *MEDIA_OBJECTS,
    *OTHER_OBJECTS,
)
PATHS = (  # options that name a file or a folder, or several: there ~ is the home, as no shell has it behind a =
    *("uds", "api_key_file", "key_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "record", "tool_server"),
    *("allowed_local_media_path", "lora_folder", "profile_dir", "dump_dir", "weights_folder", "files_dir"),
    *("models_dir", "models_preset"),
    *("tool_parser_plugin", "reasoning_parser_plugin", "io_processor_plugin", "worker_cls", "worker_extension_cls"),
    "logits_processors",
)
MOST_SHOWN = 80  # characters of a value in a message
UNITS = {  # of numbers, by the end of their names; others are counts
    "_timeout": "SECONDS",
    "_window": "SECONDS",
    "_interval": "SECONDS",
    "_ms": "MILLISECONDS",
    "_bytes": "BYTES",
    "files_limit": "BYTES",
    "_log_len": "CHARACTERS",
    "_len": "TOKENS",
    "_tokens": "TOKENS",
    "block_size": "TOKENS",
    "_fraction": "SHARE",
    "_utilization": "SHARE",
    "port": "PORT",
}


@cache
def option_fields() -> Mapping[str, inspect.Field]:
    """All options by name, in their order."""
    info = inspect.type_info(Config)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields if field.name not in NO_OPTIONS}


def flag(name: str) -> str:
    """A field as an option."""
    return f"--{name.replace('_', '-')}"


def plain_type(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without None."""
    if isinstance(kind, inspect.Metadata):
        return plain_type(kind.type)
    if isinstance(kind, inspect.UnionType):
        return plain_type(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
    return kind


def unit(name: str) -> str:
    """What a number of this name counts."""
    return next((words for end, words in UNITS.items() if name.endswith(end)), "N")


def description(field: inspect.Field) -> str:
    """What the field is for."""
    assert isinstance(field.type, inspect.Metadata), f"{field.name} has no description"
    return str((field.type.extra_json_schema or {})["description"])


def default(field: inspect.Field) -> Any:
    """What it is if nobody sets it."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def integer(text: str) -> int:
    """`4096`, or with a unit: a small k, m, g or t counts in thousands, a capital one, or one with an i behind it, in
    1,024. A B behind it changes nothing. ValueError says what the text is not.
    """
    found = NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(NO_INTEGER)
    digits, letter, binary = found.groups()
    factor = 1
    if letter:
        base = 1000 if letter.islower() and not binary else 1024
        factor = base ** (POWERS.index(letter.lower()) + 1)
    number = Fraction(digits.replace("_", "")) * factor
    if number.denominator != 1:
        raise ValueError(NO_INTEGER)
    return int(number)


# --- what a field may be -----------------------------------------------------------------------------------------


def canonical(name: str, value: object) -> object:
    """The value itself, where another name of it is known: `half` is float16, `deepseek-r1` deepseek_r1, `4k` 4000, and
    `~/a` /home/me/a.
    """
    field = option_fields().get(name)
    if name in PATHS:
        value = _in_home(value)
    if field is not None and is_left_out(name, value):
        return default(field)
    if field is None or not isinstance(value, str):
        return value
    kind = plain_type(field.type)
    if isinstance(kind, inspect.IntType):
        return _integer_or_text(value)
    if not isinstance(kind, inspect.LiteralType) or value in kind.values:
        return value
    plain = value.lower().replace("-", "_")
    return next((one for one in kind.values if one == plain), VALUES.get(name, {}).get(plain, value))


def is_left_out(name: str, value: object) -> bool:
    """Is it a value by which others say that nothing is said?"""
    text = value.strip().lower() if isinstance(value, str) else str(value)
    return text in LEFT_OUT.get(name, ())


def _in_home(value: object) -> object:
    """With the home in the place of ~, where a path, or one of several with commas between them, begins so."""
    if isinstance(value, list):
        return [_in_home(one) for one in value]
    return ",".join(map(os.path.expanduser, value.split(","))) if isinstance(value, str) else value


def _integer_or_text(value: str) -> int | str:
    """A number's text where it is none: what is wrong with it is said with the option's name."""
    try:
        return integer(value)
    except ValueError:
        return value


def trouble_with(name: str, value: object, message: str) -> str:
    """What is wrong with this field's value, and what it may be. `message` is msgspec's, for what has no better."""
    field = option_fields()[name]
    kind, limits = plain_type(field.type), _limits(field.type)
    shown = "" if name in SECRETS else _shown(value)
    match kind:
        case inspect.LiteralType(values=values):
            plain = value.lower().replace("-", "_") if isinstance(value, str) else ""
            if instead := NOT_SERVED.get(name, {}).get(plain):
                return f"{shown} is not served: {instead}"
            near = nearest(value, map(str, values)) if isinstance(value, str) else ""
            return f"{shown} is none of {', '.join(map(str, values))}{near}"
        case inspect.IntType() if isinstance(value, int | float | str):
            other = " nor auto" if is_left_out(name, "auto") else ""
            return f"{shown} is {_out_of(limits) if type(value) is int else NO_INTEGER + other}"
        case inspect.FloatType() if isinstance(value, int | float | str):
            return f"{shown} is {_out_of(limits) if not isinstance(value, str | bool) else 'not a number'}"
        case inspect.BoolType():
            return f"{shown} is neither true nor false"
    return message


def with_option(message: str, values: dict[str, object]) -> str:
    """msgspec's `Expected … - at `$.max_num_seqs`` as people know option and value."""
    if unknown := [name for name in values if name not in option_fields()]:
        return "; ".join(f"{name}: there is no such option{unknown_option(name)}" for name in unknown)
    text, _, path = message.partition(" - at `$.")
    if not path:
        return message
    name = path.rstrip("`").split("[")[0]
    return f"{flag(name)}: {trouble_with(name, values[name], text)}"


def unknown_option(name: str) -> str:
    """The nearest name there is, to put behind a message; in the form in which `name` is written."""
    dashed = name.replace("_", "-")
    names = [flag(one)[2:] for one in option_fields()]
    near = nearest(dashed, names)
    return near.replace("-", "_") if "_" in name else near


def _limits(kind: inspect.Type) -> inspect.IntType | inspect.FloatType | None:
    """The type that has the bounds: of the members of a union the one that is a number."""
    plain = plain_type(kind)
    return plain if isinstance(plain, inspect.IntType | inspect.FloatType) else None


def _out_of(limits: inspect.IntType | inspect.FloatType | None) -> str:
    """What a number of this type is not."""
    if limits is None:
        return "out of range"
    bounds = [
        f"{words} {bound:.15g}" if isinstance(bound, float) else f"{words} {bound}"
        for words, bound in (
            ("at least", limits.ge),
            ("more than", limits.gt),
            ("at most", limits.le),
            ("less than", limits.lt),
        )
        if bound is not None
    ]
    if limits.multiple_of is not None:
        bounds.append(f"a multiple of {limits.multiple_of}")
    return f"out of range ({', '.join(bounds)})" if bounds else "out of range"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
