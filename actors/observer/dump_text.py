"""A dump (runtime/dump.py) as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..options.config import ConfigError
from ..runtime.dump import Dump, DumpedEvent

LAST = 12  # events that are shown
SHOWN = 8  # frames that are shown with their variables


def read_dump(path: str) -> Dump:
    """ConfigError says why it is none."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Dump)
    except OSError as error:
        raise ConfigError(f"--dump: {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dump: {path} is no dump: {error}") from None


def describe_dump(dump: Dump) -> str:
    """Its error, the plan, where it was, and what it did last."""
    return "\n".join(_lines(dump))


def _lines(dump: Dump) -> Iterator[str]:
    yield f"{dump.actor} (life {dump.incarnation}, pid {dump.pid}) failed at {dump.at}"
    yield f"  {dump.error}"
    for name, value in dump.about.items():
        yield f"{name}:"
        yield from (f"  {line}" for line in _value(value))
    yield "where:"
    for number, frame in enumerate(dump.frames):
        yield f"  {frame.function} ({frame.file}:{frame.line})"
        if number >= len(dump.frames) - SHOWN:
            yield from (f"      {name} = {value}" for name, value in frame.variables.items())
    yield f"what it did last, of {len(dump.events)} events:"
    yield from map(_event, dump.events[-LAST:])
    yield "options: " + (", ".join(f"{name}={value}" for name, value in dump.options.items()) or "the defaults")
    yield "versions: " + ", ".join(f"{name} {version}" for name, version in dump.versions.items())


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{name}: {one}" for name, one in value.items())
    elif isinstance(value, list):
        yield from map(str, value or ["none"])
    else:
        yield str(value)


def _event(event: DumpedEvent) -> str:
    return f"  {event.before_ms:9.1f} ms before: {event.kind} {event.first} {event.second} {event.small}"
