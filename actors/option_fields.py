"""Config's fields as all its sources see them: by name, with their types, units and words of help.

Leaf module beside config.py, which alone says what options there are.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from .config import Config

FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
UNITS = {  # of numbers, by the end of their names; others are counts
    "_timeout": "SECONDS",
    "_window": "SECONDS",
    "_interval": "SECONDS",
    "_ms": "MILLISECONDS",
    "_bytes": "BYTES",
    "_log_len": "CHARACTERS",
    "_len": "TOKENS",
    "_tokens": "TOKENS",
    "block_size": "TOKENS",
    "_fraction": "SHARE",
    "_utilization": "SHARE",
    "port": "PORT",
}


def option_fields() -> dict[str, inspect.Field]:
    """All fields by name, in their order."""
    info = inspect.type_info(Config)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


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
    """`4096`, or with a unit: `4k` is 4000, `4K` is 4096, and so on for m and g."""
    factor = FACTORS.get(text[-1:], 1)
    return int(text if factor == 1 else text[:-1]) * factor
