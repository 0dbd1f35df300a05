"""Batches in the folder of --files-dir: what was asked, how far each is, and whether it is to be cancelled.

There are three kinds, which the beginnings of their ids tell apart: OpenAI's, whose lines stand in a file of its owner,
Anthropic's, which brings its lines along and keeps what comes of them, and Mistral's, which brings them along, and ends
with files as OpenAI's. None is found by the clients of another.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..protocol.wire import UNREADABLE
from .folder import CONTENT, Folder, publish, write_synced
from .owner import Owner

OPENAI, ANTHROPIC, MISTRAL = "batch_", "msgbatch_", "batchjob_"
BATCH_ID = re.compile(f"({OPENAI}|{ANTHROPIC}|{MISTRAL})[0-9a-f]{{24}}")
REQUEST, STATE, CANCEL = "request.json", "state.json", "cancel"
OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


Mark = tuple[int, int]  # of a request.json, by which another batch of the same id is told apart


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked: request.json."""

    id: str
    endpoint: str
    input_file_id: str  # empty: its lines are in the batch's own folder
    completion_window: str
    created_at: int  # Unix seconds
    expires_at: int
    owner: Owner
    order: int  # in which batches are listed and begun: Unix nanoseconds
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None  # after which its results are removed
    digest: str = ""  # of the request's body, by which one that is sent again is known
    total: int = 0  # lines, where they were looked at as they came
    input_files: list[str] = []  # of a job of Mistral's: those whose lines it has brought along ...
    model: str | None = None  # ... and the model that it has named for all of them

    @property
    def is_anthropics(self) -> bool:
        """Is it one of message batches?"""
        return self.id.startswith(ANTHROPIC)


class LineError(msgspec.Struct, frozen=True):
    """Why a batch was not begun. Without a line it is about the file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is: state.json, which the batcher alone writes."""

    status: str = "validating"
    outcome: str = ""  # what it ends as, once that is known
    longest: int = 0  # bytes that a line may have, as its lines were looked at
    total: int = 0  # lines
    completed: int = 0
    failed: int = 0  # those of the next two among them
    expired: int = 0
    cancelled: int = 0
    model: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    ended_at: int | None = None
    errors: list[LineError] = []
    output_file_id: str | None = None
    error_file_id: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """A batch as it is found."""

    request: BatchRequest
    state: BatchState
    cancelled_at: int | None = None  # when somebody asked for that

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def has_ended(self) -> bool:
        return self.state.status in ENDED

    @property
    def status(self) -> str:
        """As clients read it."""
        return "cancelling" if self.cancelled_at is not None and not self.has_ended else self.state.status


class NoInput(Exception):
    """The file that it is to read is not there any more."""


class BatchStore:
    """All batches of a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def create(self, request: BatchRequest) -> Batch:
        """It is found from now on, and begun by the batcher. The one that has its id, if there is one."""
        self.folder.make()
        place = self.place(request.id)
        with self.folder.locked():
            if place.exists():
                return read_batch(place)
            if not self.input(request).exists():
                raise NoInput
            self._reader(request).touch(0o600)
            made = self.folder.new(request.id)
            write_synced(made / REQUEST, msgspec.json.encode(request))
            publish(made, place)
        return Batch(request, BatchState())

    def find(self, batch_id: str, owner: Owner, kind: str = OPENAI) -> Batch | None:
        """None if it is not there, or another's, or of the other kind."""
        found = self.get(batch_id) if batch_id.startswith(kind) else None
        return found if found is not None and found.request.owner.client == owner.client else None

    def all_of(self, owner: Owner, kind: str = OPENAI) -> list[Batch]:
        """His, the oldest first."""
        return [one for one in self.all(kind) if one.request.owner.client == owner.client]

    def get(self, batch_id: str) -> Batch | None:
        """The same, whosever it is; and None if it cannot be read."""
        if not BATCH_ID.fullmatch(batch_id):
            return None
        try:
            return read_batch(self.place(batch_id))
        except (FileNotFoundError, NotADirectoryError, *UNREADABLE):
            return None

    def all(self, kind: str = "") -> list[Batch]:
        """The oldest first; of all kinds, if none is named."""
        names = os.listdir(self.folder.batches) if self.folder.batches.exists() else []
        found = (self.get(name) for name in names if name.startswith(kind))
        return sorted((one for one in found if one is not None), key=lambda one: (one.request.order, one.id))

    def cancel(self, batch_id: str) -> Batch | None:
        """Of one that was found: the batcher begins no more lines of it. None if it was removed meanwhile."""
        place = self.place(batch_id)
        try:
            if not (place / CANCEL).exists():  # it tells since when
                (place / CANCEL).touch(0o600)
            return read_batch(place)
        except FileNotFoundError:
            return None

    def delete(self, batch_id: str) -> None:
        """One that was found, and has ended."""
        with self.folder.locked():
            if (found := self.get(batch_id)) is None:  # another was quicker
                return
            if found.request.input_file_id:
                self._reader(found.request).unlink(missing_ok=True)
            self.folder.remove(self.place(batch_id))

    def remove_old(self, before: float) -> int:
        """Those that had ended before (Unix seconds), and how many these were."""
        old = [one.id for one in self._unchanged_since(before) if one.has_ended and (one.state.ended_at or 0) < before]
        for name in old:
            self.delete(name)
        return len(old)

    def _unchanged_since(self, before: float) -> Iterator[Batch]:
        """Of most the time of the last state's file is looked at alone."""
        for state in self.folder.batches.glob(f"*/{STATE}"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if state.stat().st_mtime < before and (found := self.get(state.parent.name)) is not None:
                    yield found

    def reader_of(self, file_id: str) -> str | None:
        """The id of a batch that has not ended and reads this file."""
        marks = (self.folder.files / file_id).glob(f"{OPENAI}*")
        readers = (self.get(mark.name) for mark in marks)
        return next((one.id for one in readers if one is not None and not one.has_ended), None)

    def _reader(self, request: BatchRequest) -> Path:
        """By which its input's readers are found without a look at all batches. It may be there without its batch."""
        return self.folder.files / request.input_file_id / request.id

    def place(self, batch_id: str) -> Path:
        """Where all of it stands."""
        return self.folder.batches / batch_id

    def answers(self, batch_id: str) -> list[Path]:
        """Where its lines are answered; of Anthropic's for good."""
        return [self.place(batch_id) / name for name in (OUTPUT, ERRORS)]

    def input(self, request: BatchRequest) -> Path:
        """Its lines."""
        place = self.folder.files / request.input_file_id if request.input_file_id else self.place(request.id)
        return place / CONTENT

    # --- the batcher's -------------------------------------------------------------------------------------------

    def mark_of(self, batch_id: str) -> Mark | None:
        """Of the one that has this id now; None of what is no batch."""
        try:
            found = os.stat(f"{self.folder.batches}/{batch_id}/{REQUEST}")  # thousands, twice a second: no Path is made
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns

    def mark_input(self, request: BatchRequest) -> None:
        """Its input has it among its readers: one that was begun by an older server has not."""
        if not request.input_file_id or self._reader(request).exists():
            return
        with self.folder.locked():
            if self.input(request).exists():
                self._reader(request).touch(0o600)

    def save(self, batch_id: str, state: BatchState) -> None:
        """It is so far."""
        write_synced(self.place(batch_id) / STATE, msgspec.json.encode(state))

    def is_cancelled(self, batch_id: str) -> bool:
        """Is it to begin no more lines?"""
        return (self.place(batch_id) / CANCEL).exists()


def read_batch(place: Path) -> Batch:
    """The one that stands there."""
    try:
        state = msgspec.json.decode((place / STATE).read_bytes(), type=BatchState)
    except FileNotFoundError:  # the batcher has not seen it yet, or it is being removed, which the next line tells
        state = BatchState()
    request = msgspec.json.decode((place / REQUEST).read_bytes(), type=BatchRequest)
    try:
        cancelled = int((place / CANCEL).stat().st_mtime)
    except FileNotFoundError:
        cancelled = None
    return Batch(request, state, cancelled)
