"""Mistral's batch jobs: what its clients send to /v1/batch/jobs, the lines that are asked, and how a job is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actorserve.actors.files.batches import Batch, LineError

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode
from ...generation.fields.depth import check_depth
from .objects import Object

MOST_HOURS = 24 * 366
MOST_INLINE = 10_000  # requests that come with a job, as there
MOST_OUTPUTS = 16 << 20  # bytes of results that are told with one
PIECE = 1 << 20  # bytes of lines that are written at once
STATUSES = {
    **{"validating": "QUEUED", "in_progress": "RUNNING", "finalizing": "RUNNING", "completed": "SUCCESS"},
    **{"failed": "FAILED", "expired": "TIMEOUT_EXCEEDED"},
    **{"cancelling": "CANCELLATION_REQUESTED", "cancelled": "CANCELLED"},
}
Status = Literal["QUEUED", "RUNNING", "SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLATION_REQUESTED", "CANCELLED"]


class JobLine(msgspec.Struct):
    """A request of a job: a line of its file, or one that came with it."""

    body: dict[str, msgspec.Raw]
    custom_id: str | None = None  # the job's id and its number, if left out


class BatchJobRequest(msgspec.Struct):
    """POST /v1/batch/jobs."""

    endpoint: str
    input_files: list[str] | None = None
    requests: Annotated[list[JobLine], Meta(max_length=MOST_INLINE)] | None = None
    model: str | None = None  # of all its requests
    agent_id: str | None = None
    metadata: dict[str, str] | None = None
    timeout_hours: Annotated[int, Meta(ge=1, le=MOST_HOURS)] = 24


class BatchJobsQuery(msgspec.Struct):
    """Which jobs are listed."""

    page: Annotated[int, Meta(ge=0)] = 0
    page_size: Annotated[int, Meta(ge=1, le=1000)] = 100
    model: str | None = None
    agent_id: str | None = None
    created_after: datetime | None = None
    status: list[Status] = []
    order_by: Literal["created", "-created"] = "-created"

    def lets(self, batch: Batch) -> bool:
        """Is this one among them?"""
        after = self.created_after
        if after is not None and after.tzinfo is None:
            after = after.replace(tzinfo=UTC)
        return (
            self.model in (None, batch.request.model or batch.state.model)
            and not self.agent_id
            and (after is None or batch.request.created_at > after.timestamp())
            and (not self.status or STATUSES[batch.status] in self.status)
        )


class BatchJobQuery(msgspec.Struct):
    """How a job is told."""

    inline: bool = False  # with its results


class JobLines:
    """A job's requests as lines of a batch."""

    def __init__(self, job_id: str, endpoint: str, model: str | None) -> None:
        """`job_id`: what is left out is named by, as no client names a line of its own."""
        self._job_id, self._endpoint, self._model = job_id, endpoint, model
        self._count = 0

    def of_requests(self, requests: Iterable[JobLine]) -> Iterator[bytes]:
        """Pieces of several."""
        yield from _joined(map(self._line, requests))

    def of_file(self, path: Path, name: str, longest: int) -> Iterator[bytes]:
        """The same of a file, which is called `name`. `longest`: bytes that a line may have."""
        with path.open("rb") as file:
            yield from _joined(self._line(line) for line in _lines(file, name, longest))

    def _line(self, request: JobLine) -> bytes:
        body: dict[str, Any] = dict(request.body)
        if self._model is not None:
            body["model"] = self._model
        name = f"{self._job_id}-{self._count}" if request.custom_id is None else request.custom_id
        self._count += 1
        line = {"custom_id": name, "method": "POST", "url": self._endpoint, "body": body}
        return msgspec.json.format(msgspec.json.encode(line), indent=-1) + b"\n"  # without line breaks of the client's


def _lines(file: Any, name: str, longest: int) -> Iterator[JobLine]:
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise bad_request(f"{name}: line {number} is longer than {longest} bytes (--max-body-bytes).", name)
        if line.strip():
            try:
                yield decode(JobLine, check_depth(line, "line"), whole="line")
            except ApiError as error:
                raise bad_request(f"{name}: line {number}: {error}", name) from None


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def job_object(batch: Batch, outputs: list[Object] | None = None) -> Object:
    """A job."""
    request, state = batch.request, batch.state
    return {
        "id": request.id,
        "object": "batch",
        "input_files": request.input_files,
        "metadata": request.metadata,
        "endpoint": request.endpoint,
        "model": request.model or state.model,
        "agent_id": None,
        "output_file": state.output_file_id,
        "error_file": state.error_file_id,
        "errors": _counted(state.errors),
        "outputs": outputs,
        "status": STATUSES[batch.status],
        "created_at": request.created_at,
        "started_at": state.in_progress_at,
        "completed_at": state.ended_at,
        "total_requests": state.total,
        "completed_requests": state.completed + state.failed,
        "succeeded_requests": state.completed,
        "failed_requests": state.failed,
    }


def _counted(errors: list[LineError]) -> list[Object]:
    """Each message once, with the first line that it is about, and of how many it is told."""
    first = {error.message: error.line for error in reversed(errors)}
    counts = Counter(error.message for error in errors)
    return [
        {"message": text if first[text] is None else f"line {first[text]}: {text}", "count": count}
        for text, count in counts.items()
    ]
