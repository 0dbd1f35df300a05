"""Jinja's filters and functions that can make much of little, bounded; and those that transformers adds.

They take the context, whether they need it or not, so that Jinja does not compute them while it compiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context
from jinja2.utils import generate_lorem_ipsum

from .bounds import MAX_ITEMS, check, check_join, check_percent, check_replace, check_width, text_size
from .problem import Raised

MAX_PATTERN = 4096  # characters of a time's pattern; each may stand for many
MAX_LOREM = 100_000  # words

Filter = Callable[..., Any]


def raise_exception(message: str) -> None:
    """The template refuses the conversation."""
    raise Raised(message)


def strftime_now(pattern: str) -> str:
    if isinstance(pattern, str):
        check(len(pattern), "strftime_now", MAX_PATTERN)
    return datetime.now().strftime(pattern)


def lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:  # noqa: A002  # as Jinja names them
    """Jinja's own filler text, of which nobody needs much."""
    check(n * max, "lipsum", MAX_LOREM)
    return generate_lorem_ipsum(n, html, min, max)


@pass_context
def tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as transformers has it: Jinja's own filter would escape HTML."""
    size = text_size(value, "tojson")
    space = text_size(separators) if separators else 0
    space += indent if isinstance(indent, int) else text_size(indent or "")
    check(size + size // 4 * space, "tojson")  # no item is shorter than 4
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def fromjson(context: Context, value: str) -> Any:
    """What a text is as JSON, or the text: Mistral's library writes results of tools so. No larger than the text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


@pass_context
def join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return FILTERS["join"](context.eval_ctx, check_join(value, d), d)


@pass_context
def replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    check_replace(str(s), str(old), str(new), count)
    return FILTERS["replace"](context.eval_ctx, s, old, new, count)


@pass_context
def center(context: Context, value: Any, width: int = 80) -> Any:
    check_width(value, width)
    return FILTERS["center"](value, width)


@pass_context
def indent(context: Context, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    if isinstance(s, str) and isinstance(width, (int, str)):
        by = len(width) if isinstance(width, str) else width
        check(len(s) + (1 + len(s.splitlines())) * by, "indent")
    return FILTERS["indent"](s, width, first, blank)


@pass_context
def format_filter(context: Context, value: Any, *args: Any, **named: Any) -> Any:
    check_percent(str(value), named or args)
    return FILTERS["format"](value, *args, **named)


@pass_context
def wordwrap(
    context: Context,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> Any:
    if isinstance(s, str) and isinstance(wrapstring, str):
        check(len(s) * len(wrapstring), "wordwrap")
    return FILTERS["wordwrap"](context.environment, s, width, break_long_words, wrapstring, break_on_hyphens)


@pass_context
def batch(context: Context, value: Iterable[Any], linecount: int, fill_with: Any = None) -> Any:
    if fill_with is not None:
        check(linecount, "batch", MAX_ITEMS)
    return FILTERS["batch"](value, linecount, fill_with)


@pass_context
def urlize(context: Context, value: str, *args: Any, **named: Any) -> Any:
    check(text_size([*args, *named.values()]), "urlize", MAX_PATTERN)
    return FILTERS["urlize"](context.eval_ctx, value, *args, **named)


BOUNDED: dict[str, Filter] = {
    "batch": batch,
    "center": center,
    "format": format_filter,
    "fromjson": fromjson,
    "indent": indent,
    "join": join,
    "replace": replace,
    "tojson": tojson,
    "urlize": urlize,
    "wordwrap": wordwrap,
}
