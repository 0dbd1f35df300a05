"""What an actor leaves in a file when a step or a turn of it fails: the plan, shapes of tensors, its last events, where
it was in the code, versions and options. `actorserve why --dump FILE` reads it.

A file is written whole or not at all; of all that are there the newest are kept. It holds no prompts and no answers: of
the variables on the way to the error, arrays are told by type and shape, numbers as they are, and nothing else.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from actorserve.shm.rings.trace_ring import read_trace
from actorserve.shm.segment import Segment

from ..options.config import Config
from ..protocol.topology import System
from ..telemetry.discovery import without_secrets
from ..telemetry.trace_events import EventKind
from ..telemetry.versions import versions
from .whole_file import write_whole

NEWEST = "dump-*.json"
KEPT = 20  # files
EVENTS = 300
FRAMES = 40
VARIABLES = 40  # of a frame
LONGEST = 4000  # characters of a text
NONE = "none"  # for --dump-dir


class DumpContext(Protocol):
    """What is asked of an actor's (process.py)."""

    config: Config
    name: str
    incarnation: int
    log: logging.Logger
    segment: Segment
    system: System


class DumpedFrame(msgspec.Struct):
    """A function on the way to the error."""

    function: str
    file: str
    line: int
    variables: dict[str, str] = {}


class DumpedEvent(msgspec.Struct):
    """As telemetry/trace_events.py has them."""

    before_ms: float  # the error
    kind: str
    first: int
    second: int
    small: int


class Dump(msgspec.Struct):
    """All of a file."""

    at: str
    actor: str
    incarnation: int
    pid: int
    error: str
    traceback: list[str]
    frames: list[DumpedFrame]
    about: dict[str, Any]  # what the actor says of itself
    events: list[DumpedEvent]
    versions: dict[str, str]
    options: dict[str, Any]  # those that are not at their defaults


def write_dump(context: DumpContext, error: BaseException, about: dict[str, Any]) -> Path | None:
    """Its path, which the log says, too; None where none is wanted, or none can be written."""
    folder = folder_of(context.config)
    if folder is None:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"dump-{stamp}-{context.name}-{os.getpid()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(make_dump(context, error, about)))
        for old in sorted(folder.glob(NEWEST), key=lambda one: one.name)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as problem:
        context.log.warning("--dump-dir: %s: %s", path, problem.strerror)
        return None
    context.log.error("what it was doing is in %s: actorserve why --dump FILE shows it", path)
    return path


def folder_of(config: Config) -> Path | None:
    """Where dumps are."""
    if config.dump_dir == NONE:
        return None
    if config.dump_dir is not None:
        return Path(config.dump_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve" / "dumps"


def make_dump(context: DumpContext, error: BaseException, about: dict[str, Any]) -> Dump:
    """What is known now."""
    lines = [line.rstrip("\n")[:LONGEST] for line in traceback.format_exception(error, limit=FRAMES)]
    return Dump(
        at=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        actor=context.name,
        incarnation=context.incarnation,
        pid=os.getpid(),
        error=f"{type(error).__name__}: {error}"[:LONGEST],
        traceback=lines,
        frames=list(_frames(error)),
        about=about,
        events=_events(context),
        versions=versions(),
        options=_changed(context.config),
    )


def _events(context: DumpContext) -> list[DumpedEvent]:
    now = time.monotonic_ns()
    names = {int(kind): kind.name.lower() for kind in EventKind}
    found = read_trace(context.segment, context.system.trace_offsets[context.name])[-EVENTS:]
    return [
        DumpedEvent((now - one.at_ns) / 1e6, names.get(one.kind, str(one.kind)), one.first, one.second, one.small)
        for one in found
    ]


def _changed(config: Config) -> dict[str, Any]:
    own, defaults = msgspec.to_builtins(without_secrets(config)), msgspec.to_builtins(Config())
    return {name: value for name, value in own.items() if value != defaults[name]}


def _frames(error: BaseException) -> Iterator[DumpedFrame]:
    """The last ones, from the root."""
    place, found = error.__traceback__, list[tuple[FrameType, int]]()
    while place is not None:
        found.append((place.tb_frame, place.tb_lineno))
        place = place.tb_next
    for frame, line in found[-FRAMES:]:
        code = frame.f_code
        yield DumpedFrame(code.co_qualname, code.co_filename, line, dict(_variables(frame)))


def _shape_of(value: object) -> Any:
    """None where it has none, or answers no question: the error that is told of is another one."""
    try:
        return getattr(value, "shape", None)
    except Exception:
        return None


def _variables(frame: FrameType) -> Iterator[tuple[str, str]]:
    for name, value in list(frame.f_locals.items())[:VARIABLES]:
        if isinstance(value, bool | int | float):
            yield name, f"{value!r:.80}"
        elif isinstance(shape := _shape_of(value), tuple) and hasattr(value, "dtype"):  # a model has others
            yield name, f"{str(getattr(value, 'dtype', '')).removeprefix('torch.')}{list(shape)}"[:80]
