"""What is asked of a supervisor on its control socket, and what it answers: both ends of that wire.

A request is one line of JSON, and so is its answer; a connection may have several, one after the other.
    {"verb": "status", "arguments": {}}        →  {"result": …}  or  {"error": "why not"}
Requests are written and answers read by observer/ask.py, by commands/running/ and, in frontends, by
frontend/supervisor.py; others by supervisor/control/ (socket.py the lines, commands.py what each command does). One
that asks may be of other code than the server: fields are added to answers and never change their meaning, and a field
that a server does not know is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

REQUEST_BYTES = 64 << 10  # of the longest
ANSWER_BYTES = 1 << 20

Arguments = TypeVar("Arguments", bound=msgspec.Struct)
Result = TypeVar("Result", bound=msgspec.Struct)


@dataclass(frozen=True)
class ControlCommand(Generic[Arguments, Result]):
    """One thing that can be asked."""

    name: str
    arguments: type[Arguments]
    result: type[Result]


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


class ChildStatus(msgspec.Struct):
    """An actor as its supervisor sees it."""

    name: str
    pid: int
    up: bool
    restarts: int
    hung: str  # why it is taken for hung; empty if it is not
    parked: str = ""  # why no life of it is wanted; empty if one is


class ServerStatus(msgspec.Struct):
    """The server as its supervisor sees it."""

    ready: bool
    ending: bool
    actors: list[ChildStatus]
    under_way: str = ""  # the operation that is, such as a restart


class RestartRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Whom to replace, and which of their options are to be others."""

    what: str
    options: dict[str, Any] = {}


class RestartBegun(msgspec.Struct):
    """By which number its progress is asked for, and how many actors it is about."""

    number: int
    actors: int


class ProgressRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which operation, and how many lines of it are known."""

    number: int
    seen: int = 0


class OperationNews(msgspec.Struct):
    """What has happened since; `failed` says why not all is as it was to be, once it is done."""

    lines: list[str]
    done: bool
    failed: str


class ScaleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many engines are to run."""

    engines: int


class ScaleBegun(msgspec.Struct):
    """By which number its progress is asked for, and how many engines ran before."""

    number: int
    before: int


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many seconds running requests get; as long as on SIGTERM if left out."""

    timeout: float | None = None


class DrainBegun(msgspec.Struct):
    """How many seconds they get, without end if none are said, and how many requests these are."""

    seconds: float | None
    requests: int = 0


class Left(msgspec.Struct):
    """What still runs."""

    requests: int
    connections: int


STATUS = ControlCommand("status", NoArguments, ServerStatus)
RESTART = ControlCommand("restart", RestartRequest, RestartBegun)
RESTART_PROGRESS = ControlCommand("restart_progress", ProgressRequest, OperationNews)
SCALE = ControlCommand("scale", ScaleRequest, ScaleBegun)
SCALE_PROGRESS = ControlCommand("scale_progress", ProgressRequest, OperationNews)
DRAIN = ControlCommand("drain", DrainRequest, DrainBegun)
LEFT = ControlCommand("left", NoArguments, Left)


class ControlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One line."""

    command: str = msgspec.field(name="verb")
    arguments: dict[str, Any] = {}


class ControlAnswer(msgspec.Struct, omit_defaults=True):
    """One line: what came of it, or why it is refused."""

    result: Any = msgspec.UNSET
    error: str | None = None


def encode_request(command: str, arguments: msgspec.Struct) -> bytes:
    return _line(ControlRequest(command, msgspec.to_builtins(arguments)))


def read_request(line: bytes) -> ControlRequest:
    """An error of UNREADABLE (protocol/wire.py) if it is none."""
    return msgspec.json.decode(line, type=ControlRequest)


def encode_answer(answer: ControlAnswer) -> bytes:
    return _line(answer)


def read_answer(line: bytes) -> ControlAnswer:
    """msgspec.DecodeError if it is none."""
    return msgspec.json.decode(line, type=ControlAnswer)


def _line(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record) + b"\n"
