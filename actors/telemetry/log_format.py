"""Log lines as actors write them: text for people, or with --log-format json one object a line for machines.

An actor writes whole lines to standard error and its supervisor passes them on (supervisor/output.py): text behind the
actor's name, objects as they are. What reached the pipe in no such form (a library's words, a crash's, half a line of
an actor that was killed) becomes an object there. Leaf module.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from functools import lru_cache
from types import TracebackType
from typing import Any

import msgspec

MOST_BYTES = 16_000  # of one object: what is longer than output.LONGEST would be broken
WHOLE = 16_384  # characters of a message or a traceback, before something must be cut
LEAST = 64
UNSPOKEN = "warning"  # the level of what was written to standard error by no logger
TEXT = "%(levelname)s %(message)s"
FIRST = b'{"time":'  # what our objects begin with
FIELDS = "fields"  # in `extra` of a logging call: what an object has beside its message
LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "critical"}

_encode = msgspec.json.Encoder(enc_hook=repr).encode
_decode = msgspec.json.Decoder().decode


class RequestName(str):
    """How logs name a request. As an argument of a log call it becomes a field of the object, too."""

    request_id: str

    def __new__(cls, request_id: str, otherwise: str) -> RequestName:
        """`otherwise` names it where its id is not known."""
        name = super().__new__(cls, f"request {request_id or otherwise}")
        name.request_id = request_id
        return name


def iso_time(seconds: float) -> str:
    """UTC with milliseconds, as most collectors read it."""
    whole, rest = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{rest:03d}Z"


def local_time(seconds: float) -> str:
    """The machine's own time with milliseconds, for people."""
    whole, rest = divmod(int(seconds * 1000), 1000)
    return f"{_local_second(whole)}.{rest:03d}"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@lru_cache(maxsize=2)
def _local_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def json_line(level: str, actor: str, pid: int, message: str, more: dict[str, Any] | None = None) -> bytes:
    """One object, without the end of the line; texts in it are cut where they make it too long."""
    line: dict[str, Any] = {
        "time": iso_time(time.time()),
        "level": level,
        "actor": actor,
        "pid": pid,
        "message": message,
        **(more or {}),
    }
    encoded = _encoded(line)
    most = WHOLE
    while len(encoded) > MOST_BYTES and most > LEAST:
        most //= 2
        encoded = _encoded({key: _cut(value, most) for key, value in line.items()})
    if len(encoded) <= MOST_BYTES:
        return encoded
    return _encoded({key: line[key] for key in ("time", "level", "actor", "pid")} | {"message": _cut(message, LEAST)})


def _encoded(line: dict[str, Any]) -> bytes:
    try:
        return _encode(line)
    except UnicodeEncodeError:  # half of a surrogate pair, from bytes that were no UTF-8
        return _encode({k: v.encode(errors="replace").decode() if isinstance(v, str) else v for k, v in line.items()})


def _cut(value: Any, most: int) -> Any:
    """A text's beginning and its end, where the reason of a traceback stands."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    return f"{value[: most // 4]} […] {value[-(most - most // 4) :]}"


def message_of(line: bytes) -> str | None:
    """The message of an object of ours, and its exception's reason; None if it is something else, or half of one."""
    if not line.startswith(FIRST):
        return None
    try:
        read = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(read, dict) or not isinstance(read.get("message"), str):
        return None
    *_, reason = str(read.get("exception", "")).rstrip().splitlines() or [""]
    message: str = read["message"]
    return message if not reason or reason in message else f"{message}: {reason}"


class JsonFormatter(logging.Formatter):
    """A record as an object of the actor's; `fields` of the call and the traceback, if there is one, stand in it."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        more = dict(getattr(record, FIELDS, {}))
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, RequestName) and argument.request_id:
                more.setdefault("request_id", argument.request_id)
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            more["stack"] = record.stack_info
        level = LEVELS.get(record.levelname, record.levelname.lower())
        return json_line(level, self._actor, os.getpid(), record.getMessage(), more).decode()


class TextFormatter(logging.Formatter):
    """A record as text: one line, whatever a client had put into it, and a traceback behind it if there is one."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Line ends and what a terminal acts on are written as Python writes them."""
        line = super().formatMessage(record).rstrip("\n")
        return line if line.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def log_to_stderr(level: str, log_format: str, actor: str) -> None:
    """This process is `actor`, whose supervisor reads its standard error: one line a record."""
    handler = logging.StreamHandler(sys.stderr)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    if log_format == "json":
        handler.setFormatter(JsonFormatter(actor))
        say_exceptions(actor)
    else:
        handler.setFormatter(TextFormatter())


def say_exceptions(name: str) -> None:
    """Tracebacks that nobody catches, and warnings, go through logging: each is one line, whole."""
    log = logging.getLogger(name)

    def say(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        reason = traceback.format_exception_only(kind, error)[-1].strip()
        log.critical("%s", reason, exc_info=(kind, error or kind(), trace))

    def say_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            say(args.exc_type, args.exc_value, args.exc_traceback)

    def say_of_nobody(args: Any) -> None:
        error = args.exc_value
        log.error("%s: %r", args.err_msg or "ignored", args.object, exc_info=(args.exc_type, error, args.exc_traceback))

    sys.excepthook = say
    threading.excepthook = say_of_thread
    sys.unraisablehook = say_of_nobody
    logging.captureWarnings(True)
