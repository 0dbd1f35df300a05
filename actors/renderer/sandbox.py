"""The sandbox that chat templates run in: what transformers' has, and no sum that grows without bound.

Templates are other people's code. They reach plain data only; what they may produce is bounded by their caller.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 32 << 20  # characters or items of one product, and all that a template may produce
MAX_BITS = 4096  # of a power


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only passed over."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)]


class PlainDict:
    """`dict` for templates: it makes dictionaries, and the type itself, through which Python is reached, is hidden."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """`namespace` for templates, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # Namespace's own form: `self` is a name like any other
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, as {name!r} does")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which no sum grows beyond what a template may produce."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            too_long = left.bit_length() * right > MAX_BITS
        else:
            sizes = [len(side) if isinstance(side, (str, list, tuple)) else side for side in (left, right)]
            too_long = sizes != [left, right] and all(isinstance(size, int) for size in sizes)
            too_long = too_long and sizes[0] * sizes[1] > MAX_TEXT
        if too_long:
            raise SecurityError(f"the chat template makes too much with {operator}")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment
