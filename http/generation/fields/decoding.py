"""From a body's bytes to a struct, or a 400 that names the field."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ...errors import ApiError, bad_request
from ...settings import AdapterNames, printable
from .choices import choices

T = TypeVar("T")
PATH = re.compile(r" - at `\$\.?(.*)`$")
ANY_KEY = "[...]"  # behind it a path is within a value of an object whose keys are any
UNKNOWN = re.compile(r"unknown field `(.+?)`")
STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*+"?|(?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)', re.S)
MOST_REWRITTEN = 256 << 10  # bytes of a body that is read twice
EMPTY_OBJECT = re.compile(r"^Expected `object[^`]*`, got `array` - at `\$\.(\w+)`$")
EXACT = 1 << 53  # from here on, a float's integer need not be the one that was written
RANK = "X-data-parallel-rank"
LONGEST_NUMBER = 9  # digits of an engine's
LONGEST_NAME = 256  # of a model that nobody knows; each event says it
ADDRESSES = "http://", "https://"  # how a server's begins, which Hugging Face's JavaScript client sends as the model
log = logging.getLogger("http")


def decode(kind: type[T], body: bytes, inside: str | None = None, whole: str = "body") -> T:
    """The struct of a JSON body, or of a message that is called otherwise. ApiError 400 names the field and what it
    should have been.
    """
    try:
        body.decode()  # what is passed over (unknown fields, raw messages) is looked at by nobody else
        value = _decoded(kind, body)
    except msgspec.ValidationError as error:
        text = str(error)
        found = PATH.search(text)
        path = found[1].partition(ANY_KEY)[0] if found else ""
        if inside is not None:
            path = f"{inside}{path}" if path.startswith("[") else f"{inside}.{path}" if path else inside
        if missing := re.search(r"missing required field `(.+?)`", text):
            path = f"{path}.{missing[1]}" if path else missing[1]
            raise bad_request(f"{path} is missing.", path) from None
        if unknown := UNKNOWN.search(text):
            path = f"{path}.{unknown[1]}" if path else unknown[1]
            raise bad_request(f"{path} is not supported: there is no such field.", path) from None
        reason = PATH.sub("", text)
        reason += choices(kind, reason, found[1] if found else "")
        raise bad_request(f"{path}: {reason}" if path else reason, path or None) from None
    except UnicodeDecodeError as error:
        raise bad_request(f"The {whole} is not UTF-8: {error.reason} (byte {error.start})") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"{inside or f'The {whole}'} is not valid JSON: {error}", inside) from None
    except RecursionError:
        raise bad_request(f"The {whole} is nested too deeply.") from None
    if log.isEnabledFor(logging.DEBUG) and isinstance(value, msgspec.Struct):
        _log_unknown(value, body)
    return value


def decode_query(kind: type[T], given: Mapping[str, Any]) -> T:
    """The struct of a query's parameters. ApiError 400 names the one that cannot be; unknown ones are passed over."""
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        name = found[1] if (found := PATH.search(text)) else ""
        reason = PATH.sub("", text)
        raise bad_request(f"{name}: {reason}{choices(kind, reason, name)}", name or None) from None


def _decoded(kind: type[T], body: bytes) -> T:
    """As msgspec has it, but 1.0 is an integer: JSON knows no difference, and some languages write all numbers so; and
    a field's empty object may be an empty array, which PHP writes of both.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if len(body) > MOST_REWRITTEN:
            raise
        if (name := EMPTY_OBJECT.search(str(error))) is not None and (changed := _with_object(body, name[1])):
            return _decoded(kind, changed)
        whole = STRING_OR_NUMBER.sub(_as_integer, body) if "got `float`" in str(error) else body
        if whole == body:
            raise
        return _decoded(kind, whole)


def _with_object(body: bytes, name: str) -> bytes | None:
    """With an empty object where this field is an empty array; None where it holds something."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if msgspec.json.decode(fields[name]):
        return None
    return msgspec.json.encode(fields | {name: msgspec.Raw(b"{}")})


def _as_integer(found: re.Match[bytes]) -> bytes:
    """A number that is whole, without a point; everything else as it is."""
    number = found["number"]
    if number is None or number.lstrip(b"-").isdigit():
        return found[0]
    value = float(number)
    return b"%d" % value if value.is_integer() and abs(value) < EXACT else found[0]


def _log_unknown(value: msgspec.Struct, body: bytes) -> None:
    """Name the fields that nobody reads."""
    names = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys() - set(value.__struct_fields__)
    for name in sorted(names):
        log.debug("%s: the field %.64r is not known, and ignored", type(value).__name__, name)


def check_model(
    asked: str | None,
    served: list[str],
    adapters: AdapterNames | None = None,
    any_name: bool = False,
    going_on: bool = False,
) -> str:
    """The name to answer with. 404 for a model or an adapter that is not served, unless any name is taken, or it is an
    address, which names none; `going_on`: begun when it was, and it may be gone by now.
    """
    if asked is None or asked == "":
        return served[0]
    if going_on or asked in served or (adapters is not None and adapters.find(asked) is not None):
        return asked
    if adapters is not None and adapters.can_load(asked):
        return asked
    if any_name and len(asked) <= LONGEST_NAME:
        return asked
    if asked.startswith(ADDRESSES):
        return served[0]
    raise no_model(asked)


def not_loaded(name: str) -> ApiError:
    """400, where who asks does not load it."""
    return bad_request(f"model: {name} is not loaded; POST /models/load loads it.", "model")


def unloadable(name: str, why: str) -> ApiError:
    """503: who asks again has it tried again."""
    return ApiError(503, f"The model `{name}` cannot be loaded: {why}", "model", "model_not_loaded")


def no_model(asked: str) -> ApiError:
    """404."""
    return ApiError(404, f"The model `{asked:.256}` does not exist.", "model", "model_not_found")


def engine_of(headers: Mapping[str, str], engines: range, first: int) -> int | None:
    """Which of this server's engines X-data-parallel-rank names, if it is there; 400 if it names none of the model's,
    which have these numbers. `first`: the number of the server's first.
    """
    given = headers.get(RANK)
    if given is None:
        return None
    if given.isdecimal() and given.isascii() and len(given) <= LONGEST_NUMBER and int(given) in engines:
        return int(given) - first
    numbers = f"{engines[0]}" if len(engines) == 1 else f"between {engines[0]} and {engines[-1]}"
    raise bad_request(
        f"{RANK} must be {numbers}, the number of an engine (--data-parallel-size), not {printable(given):.64}.", RANK
    )
