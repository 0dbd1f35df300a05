"""Whether the lines of a file are those of a batch; what is wrong is told by OpenAI's codes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import msgspec

from ..files.batches import LineError, NoInput
from ..files.lines import Request, decode_request, digest_of
from ..files.threads import on_disk
from ..protocol.wire import UNREADABLE

TURN = 4 << 20  # bytes of lines that are read at once, and gone through before others have their turn in the loop
LEAST = 20 << 10  # that a line counts as, however short
MOST_LINES = 1_000_000
MOST_ERRORS = 100  # that are told
LONGEST_NAME = 512  # characters of a custom_id
MOST_TOLD = 64  # characters of a name, in a text
ModelName = Annotated[str, msgspec.Meta(max_length=512)]
FIELD = re.compile(r"field `(\w+)`|`\$\.(\w+)")


async def lines_of(path: Path, longest: int) -> AsyncIterator[tuple[int, bytes]]:
    """Those that are not empty, with their numbers; of a longer one its beginning alone. NoInput without the file.

    They are read beside the loop, which goes on where a disk is slow, or is in a network and hangs.
    """
    with await on_disk(_opened, path) as file:
        lines = _Lines(file, longest)
        while (found := await on_disk(lines.read)) is not None:
            for one in found:
                yield one


class _Lines:
    """A file's."""

    def __init__(self, file: BufferedReader, longest: int) -> None:
        self._file, self._longest = file, longest
        self._number = 0
        self._within = False  # one that is too long, whose beginning was read

    def read(self) -> list[tuple[int, bytes]] | None:
        """Some more; None at the end."""
        found, size = list[tuple[int, bytes]](), 0
        while size < TURN:
            if not (line := self._file.readline(self._longest + 1)):
                return found or None
            size += max(len(line), LEAST)
            self._number += not self._within
            if not self._within and line.strip():
                found.append((self._number, line))
            self._within = len(line) > self._longest and not line.endswith(b"\n")
        return found


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NoInput from None


@dataclass
class Checked:
    """What was found."""

    total: int = 0
    model: str | None = None
    first: int = 0  # the number of the line that has named it
    errors: list[LineError] = field(default_factory=list)


async def check_lines(path: Path, endpoint: str, longest: int) -> Checked:
    """All of them. `longest`: bytes that one may have."""
    found, names = Checked(), set[bytes]()
    async for number, line in lines_of(path, longest):
        found.total += 1
        found.first = found.first or number
        if (error := _error(found, names, line, endpoint, longest)) is not None:
            found.errors.append(msgspec.structs.replace(error, line=number))
        if found.total > MOST_LINES:
            found.errors = [LineError("too_many_tasks", f"A batch has at most {MOST_LINES} lines.")]
        if found.total > MOST_LINES or len(found.errors) >= MOST_ERRORS:
            break
    if not found.total:
        found.errors.append(LineError("empty_file", "The file has no lines: each is a request."))
    return found


def _error(found: Checked, names: set[bytes], line: bytes, endpoint: str, longest: int) -> LineError | None:
    if len(line) > longest:
        return LineError("invalid_json_line", too_long(longest))
    try:
        request = decode_request(line)
    except msgspec.ValidationError as error:
        match = FIELD.search(str(error))
        if match is None:  # no object
            return LineError("invalid_json_line", f"This line is no request: {error}")
        code = "invalid_type" if match[1] is None else "missing_required_parameter"
        return LineError(code, str(error), match[1] or match[2])
    except UNREADABLE:
        return LineError("invalid_json_line", "This line is not parseable as valid JSON.")
    return _error_of(found, names, request, endpoint)


def too_long(longest: int) -> str:
    """What is told of a line that is."""
    return f"This line is longer than {longest} bytes (--max-body-bytes)."


def _error_of(found: Checked, names: set[bytes], request: Request, endpoint: str) -> LineError | None:
    if len(request.custom_id) > LONGEST_NAME:
        text = f"The custom_id '{request.custom_id[:MOST_TOLD]}…' is longer than {LONGEST_NAME} characters."
        return LineError("invalid_custom_id", text, "custom_id")
    if (digest := digest_of(request.custom_id)) in names:
        text = f"The custom_id '{request.custom_id[:MOST_TOLD]}' is that of an earlier line; each is there once."
        return LineError("duplicate_custom_id", text, "custom_id")
    names.add(digest)
    model = _model_of(request)
    if len(names) == 1:
        found.model = model
    if request.method != "POST":
        return LineError("invalid_method", "The method must be POST.", "method")
    if request.url != endpoint:
        return LineError("invalid_url", f"The url is not the batch's endpoint, {endpoint}.", "url")
    if model != found.model:
        this, first = ((name or "")[:MOST_TOLD] for name in (model, found.model))
        text = f"The model {this or 'of this line'} is not that of the first line, {first or 'which names none'}."
        return LineError("mismatched_model", text, "body.model")
    return None


def _model_of(request: Request) -> str | None:
    try:
        return msgspec.json.decode(bytes(request.body.get("model", b"null")), type=ModelName | None)
    except UNREADABLE:  # the server says what is wrong
        return None
