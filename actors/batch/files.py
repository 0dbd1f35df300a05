"""The two files of a batch, as OpenAI has them: JSON Lines of requests, and JSON Lines of answers.

The file of answers is also the memory of the run. A line is appended once its answer is whole, so whoever comes after
a run that was killed finds in it what is done, drops a last line that was torn off, and sends the rest. One run at a
time writes to it (flock).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from ..files.line_file import LineFile
from ..files.lines import Request, answered, decode_request
from ..options.config import ConfigError
from ..protocol.wire import UNREADABLE

BEGINNING = b'{"'  # of each answer


class BatchError(Exception):
    """The run cannot go on; the message is for people."""


def requests(path: Path) -> Iterator[tuple[int, Request]]:
    """Each request with the number of its line. ConfigError where a line is none."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a second look would find a pipe empty
                raise ConfigError(f"--input-file: {path} is no file that can be read twice: write its lines to one")
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _request(line, f"{path}, line {number}")
    except OSError as error:
        raise ConfigError(f"--input-file: {error}") from None


def _request(line: bytes, where: str) -> Request:
    try:
        request = decode_request(line)
    except UNREADABLE as error:
        raise ConfigError(f"{where} is no request of a batch: {error}") from None
    if request.method != "POST":
        raise ConfigError(f"{where}: method must be POST, not {request.method}")
    if not request.url.startswith("/"):
        raise ConfigError(f"{where}: url must be a path such as /v1/chat/completions, not {request.url}")
    if request.wants_stream:
        raise ConfigError(f"{where}: stream must be false: an answer is a line of a file")
    return request


def names(path: Path) -> set[str]:
    """The custom_id of each line. ConfigError where one is there twice, or a line is no request."""
    found: dict[str, int] = {}
    for number, request in requests(path):
        first = found.setdefault(request.custom_id, number)
        if first != number:
            raise ConfigError(f'{path}, line {number}: custom_id "{request.custom_id}" is that of line {first}, too')
    return set(found)


class Answers:
    """`with Answers(path, names) as answers:` `done` has the custom_ids that are answered, `refused` says how many
    of these by an error; `append` adds one.
    """

    def __init__(self, path: Path, expected: set[str]) -> None:
        self._path = path
        self._expected = expected
        self.done: set[str] = set()
        self.refused = 0

    def __enter__(self) -> Answers:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"--output-file: {error}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ConfigError(f"--output-file: {self._path} is no file that can be gone on with")
            self._lock()
            self._lines = LineFile(self._file)
            self._read()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--output-file: another run writes to {self._path}") from None

    def _read(self) -> None:
        """Take over what an earlier run has written."""
        for number, line in self._lines.lines():
            if not line.endswith(b"\n"):  # it was killed here
                self._check_torn(line, number)
                break
            self._take(line, number)
        self._lines.cut()

    def _check_torn(self, line: bytes, number: int) -> None:
        """What is dropped must be of an answer: another file may end without a line's end."""
        try:
            answered(line)
            return  # whole, but for its end
        except msgspec.ValidationError:
            is_answer = False
        except UNREADABLE:
            is_answer = line.startswith(BEGINNING[: len(line)])
        if not is_answer:
            where = f"--output-file: {self._path}, line {number}"
            raise ConfigError(f"{where} is no answer of a batch: name a new file")

    def _take(self, line: bytes, number: int) -> None:
        where = f"--output-file: {self._path}, line {number}"
        try:
            name, is_error = answered(line)
        except UNREADABLE:
            raise ConfigError(f"{where} is no answer of a batch: name a new file") from None
        if name not in self._expected:
            raise ConfigError(f'{where} answers "{name}", which is not in the input: name a new file')
        self._note(name, is_error)

    def _note(self, name: str, is_error: bool) -> None:
        if name not in self.done:
            self.done.add(name)
            self.refused += is_error

    def append(self, answer: dict[str, Any]) -> None:
        """Add a line, whole. BatchError where the disk is full, or the like."""
        line = msgspec.json.encode(answer)
        try:
            self._lines.append(line)
        except OSError as error:
            raise BatchError(f"{self._path}: {error}") from None
        self._note(*answered(line))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
