"""How large the texts and lists are that one operation of a template makes: refused before they are made.

Only what makes more than it is given is looked at. What grows slowly, in many steps, meets the bound of each step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jinja2.exceptions import SecurityError

MAX_TEXT = 32 << 20  # characters of one text, and of all that a template may produce
MAX_ITEMS = 1 << 20  # of one list
MAX_BITS = 4096  # of a whole number
OTHER = 32  # characters of a value that is neither text nor list, about
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d*)(?:\.(?:\*|\d*))?")
NUMBER = re.compile(r"\d+")
OF_JINJA = ("_loop_vars", "_block_vars")  # which its code passes with each call in a loop or block
SIZED = (str, bytes, list, tuple)

Parts = TypeVar("Parts", bound=Sequence[Any])


def check(size: int, what: str, limit: int | None = None) -> None:
    """SecurityError where an operation would make more than the limit, MAX_TEXT if none is given."""
    if size > (MAX_TEXT if limit is None else limit):
        raise SecurityError(f"the chat template makes too much with {what}")


def text_size(value: Any, what: str = "lists of texts") -> int:
    """About the length of str(value). A list may hold the same long text many times over, and itself be held so."""
    if isinstance(value, (str, bytes)):
        return len(value)
    size, rest = 0, [value]
    while rest:
        top = rest.pop()
        if isinstance(top, (str, bytes)):
            size += len(top)
        elif isinstance(top, Mapping):
            rest += [*top.keys(), *top.values()]
        elif isinstance(top, (list, tuple, set, frozenset)):
            rest += top
        size += 4 if isinstance(top, SIZED) else OTHER
        check(size + len(rest), what)
    return size


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Before `left OPERATOR right` is computed."""
    if operator == "+":
        _check_sum(left, right)
    elif operator == "%":
        if isinstance(left, (str, bytes)):
            check_percent(left, right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        check(bits, operator, MAX_BITS)
    elif operator == "*":
        _check_product(left, right)


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, SIZED) and isinstance(right, SIZED):
        check(len(left) + len(right), "+", _limit(left))


def _check_product(left: Any, right: Any) -> None:
    for many, count in ((left, right), (right, left)):
        if isinstance(many, SIZED) and isinstance(count, int):
            check(len(many) * count, "*", _limit(many))


def _limit(value: Any) -> int:
    return MAX_TEXT if isinstance(value, (str, bytes)) else MAX_ITEMS


def check_percent(pattern: str | bytes, given: Any) -> None:
    """`'%9s' % given`: the widths, and each value as often as there are places."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    places = PERCENT.findall(text)
    size = len(text) + sum(_numbers(place) for place in places)
    if any("*" in place for place in places):
        size += sum(abs(value) for value in given if isinstance(value, int)) if isinstance(given, tuple) else 0
    if isinstance(given, Mapping):
        size += len(places) * max((text_size(value, "%") for value in given.values()), default=0)
    else:
        size += text_size(given, "%")
    check(size, "%")


def _numbers(spec: str) -> int:
    """The sum of the numbers in a format's place. More digits than any sense has are not even read."""
    return sum(int(number) if len(number) < 12 else MAX_TEXT + 1 for number in NUMBER.findall(spec))


def check_spec(spec: str) -> None:
    """The width and precision of `'{:>9}'.format(…)`."""
    check(_numbers(spec), "format")


def check_parts(parts: Parts, what: str = "~") -> Parts:
    """Pieces that are about to be one text; they are given back."""
    check(sum(map(len, parts)) if all(type(part) is str for part in parts) else text_size(list(parts), what), what)
    return parts


def check_output(value: Any) -> Any:
    """A value that is about to be text; it is given back."""
    if isinstance(value, (list, tuple, dict)):
        text_size(value, "output")
    return value


def check_join(items: Iterable[Any], between: Any) -> list[Any]:
    """Items that are about to be joined; they are given back as a list."""
    found: list[Any] = []
    size, each = 0, text_size(between)
    for item in items:  # they may be made only now
        found.append(item)
        size += each + text_size(item, "join")
        check(size, "join")
    return found


def check_replace(text: str | bytes, old: Any = "", new: Any = "", count: Any = None) -> None:
    if isinstance(old, type(text)) or (isinstance(text, str) and isinstance(old, str)):
        times = text.count(old) if old else len(text) + 1  # type: ignore[arg-type]
        if isinstance(count, int) and count >= 0:
            times = min(times, count)
        check(len(text) + times * max(0, text_size(new) - len(old)), "replace")


def check_width(text: Any, width: Any = 0, *rest: Any) -> None:
    if isinstance(width, int):
        check(width, "a width")


def check_tabs(text: str | bytes, tabsize: Any = 8) -> None:
    if isinstance(tabsize, int):
        check(len(text) + tabsize * (text.count("\t") if isinstance(text, str) else text.count(b"\t")), "expandtabs")


def check_translate(text: str | bytes, table: Any) -> None:
    if isinstance(table, Mapping):
        check(len(text) * max((text_size(value) for value in table.values()), default=1), "translate")


def check_bytes(number: int, length: Any = 1, *rest: Any, **named: Any) -> None:
    check(length if isinstance(length, int) else 0, "to_bytes")


METHODS: dict[str, Callable[..., None]] = {
    "center": check_width,
    "expandtabs": check_tabs,
    "ljust": check_width,
    "replace": check_replace,
    "rjust": check_width,
    "to_bytes": check_bytes,
    "translate": check_translate,
    "zfill": check_width,
}


def check_call(called: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Before a method of a text or number is called; its arguments are given back, those of join as a list."""
    owner = getattr(called, "__self__", None)
    if not isinstance(owner, (str, bytes, int)):
        return args
    name = getattr(called, "__name__", "")
    if name == "join" and len(args) == 1 and not isinstance(args[0], str):
        return (check_join(args[0], owner),)
    if name == "join" and len(args) == 1:
        check(len(args[0]) * (1 + len(owner)) if isinstance(owner, (str, bytes)) else 0, "join")
    elif (guard := METHODS.get(name)) is not None:
        guard(owner, *args, **{key: value for key, value in named.items() if key not in OF_JINJA})
    return args
