"""/v1/batch/jobs: Mistral's batches, begun, listed, looked at, cancelled, removed.

A job's lines are copied into the batch's own folder as it is begun, in the form that the batcher asks. What comes of
them are files of its owner, as of OpenAI's batches. What deaths leave is what they leave of message batches
(message_batches.py): a place in tmp, or the whole job.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from aiohttp import web

from actorserve.actors.files.batches import MISTRAL, Batch, BatchRequest
from actorserve.actors.files.owner import Owner
from actorserve.actors.files.store import FileStore, NoRoom, Upload
from actorserve.actors.files.threads import on_disk

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...generation.fields.unsupported import read
from ...openai.batches.jobs import (
    MOST_OUTPUTS,
    STATUSES,
    BatchJobQuery,
    BatchJobRequest,
    BatchJobsQuery,
    JobLines,
    job_object,
)
from ...openai.batches.objects import Object
from ...openai.responses.requests import check_metadata
from ...routes import BATCHED
from ...settings import Settings
from ...transport.json_response import json_response
from .batches import HOUR_S
from .files import find_file, no_file
from .kind import BatchesOfKind
from .requests import (
    check_same,
    folder_of,
    new_id,
    no_room,
    note_found,
    on_full_disk,
    owner_of,
    query_of,
    settings_of,
    was_found,
)

INPUT = "input_files"


class BatchJobsApi(BatchesOfKind):
    """Its handlers."""

    kind, noun = MISTRAL, "batch job"

    def __init__(self, settings: Settings, longest: int, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        """`longest`: bytes of a line."""
        super().__init__(settings)
        self._longest, self._read_body = longest, read_body

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/batch/jobs."""
        limit, owner = settings_of(self._settings).limit, owner_of(request)
        raw = await self._read_body(request)
        body = _checked(read(BatchJobRequest, raw))
        batch_id, created = new_id(request, MISTRAL, self._settings)
        lines = JobLines(batch_id, body.endpoint, body.model)
        upload = self._files.upload_batch(batch_id)
        try:
            with on_full_disk():
                await on_disk(upload.begin)
                if body.requests is not None:
                    await _write(upload, lines.of_requests(body.requests))
                for index, name in enumerate(body.input_files or []):
                    await self._write_file(upload, lines, name, f"{INPUT}[{index}]", owner)
                asked = BatchRequest(
                    id=batch_id,
                    endpoint=body.endpoint,
                    input_file_id="",
                    completion_window=f"{body.timeout_hours}h",
                    created_at=created,
                    expires_at=created + body.timeout_hours * HOUR_S,
                    owner=owner,
                    order=time.time_ns(),
                    metadata=body.metadata,
                    digest=(digest := _digest(raw, upload)),
                    input_files=body.input_files or [],
                    model=body.model,
                )
                made = await on_disk(upload.keep_as_batch, asked)
        except NoRoom as error:
            raise no_room(error, INPUT, limit) from None
        finally:
            await on_disk(upload.drop)
        check_same(made.request.digest == digest)
        return json_response(job_object(made))

    async def _write_file(self, upload: Upload, lines: JobLines, name: str, param: str, owner: Owner) -> None:
        found = await find_file(self._files, name, owner, param)
        try:
            await _write(upload, lines.of_file(self._files.content(found.id), param, self._longest))
        except FileNotFoundError:  # it was deleted meanwhile
            raise no_file(found.id, param) from None

    async def list(self, request: web.Request) -> web.Response:
        """GET /v1/batch/jobs."""
        wanted = decode_query(BatchJobsQuery, query_of(request, "status"))
        every = await on_disk(self._store.all_of, owner_of(request), MISTRAL)
        found = [one for one in every if wanted.lets(one)]
        if wanted.order_by == "-created":
            found.reverse()
        page = found[wanted.page * wanted.page_size :][: wanted.page_size]
        return json_response({"object": "list", "data": [job_object(one) for one in page], "total": len(found)})

    async def retrieve(self, request: web.Request) -> web.Response:
        """GET /v1/batch/jobs/{id}."""
        found = await self._found(request)
        inline = decode_query(BatchJobQuery, request.query).inline
        return json_response(job_object(found, await on_disk(_outputs, self._files, found) if inline else None))

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /v1/batch/jobs/{id}/cancel."""
        found = await self._found(request)
        if found.status == "cancelled":  # the request may be sent again, and then all is as it wanted
            return json_response(job_object(found))
        if found.has_ended:
            raise ApiError(409, f"Cannot cancel a job with status '{STATUSES[found.status]}'.", "id")
        return json_response(job_object(await self._cancelled(found)))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/batch/jobs/{id}: its results stay, as files."""
        job_id = request.match_info["id"]
        if not was_found(request) and not (await self._found(request)).has_ended:
            raise ApiError(409, f"{job_id} has not ended: cancel it first.", "id")
        note_found(request)
        await on_disk(self._store.delete, job_id)
        return json_response({"id": job_id, "object": "batch", "deleted": True})

    @property
    def _files(self) -> FileStore:
        return FileStore(folder_of(self._settings), settings_of(self._settings).limit)


def _checked(body: BatchJobRequest) -> BatchJobRequest:
    check_metadata(body.metadata or {})
    if body.endpoint not in BATCHED:
        raise bad_request(f"endpoint must be one of {', '.join(BATCHED)}.", "endpoint")
    if body.agent_id:
        raise bad_request("agent_id is not supported: there are no agents; name a model.", "agent_id")
    if bool(body.input_files) == bool(body.requests):
        raise bad_request(f"Either {INPUT} or requests must be given, with one at least.", INPUT)
    return body


def _digest(raw: bytes, upload: Upload) -> str:
    """Of what was asked: the body, and the lines, which files may have brought."""
    return hashlib.sha256(raw + upload.digest.encode()).hexdigest()


async def _write(upload: Upload, pieces: Iterator[bytes]) -> None:
    """Beside the loop, a piece at a time."""
    while (piece := await on_disk(next, pieces, None)) is not None:
        await on_disk(upload.write, piece)


def _outputs(files: FileStore, job: Batch) -> list[Object]:
    """What has come of it, once it has ended."""
    names = [name for name in (job.state.output_file_id, job.state.error_file_id) if name is not None]
    stored = [one for name in names if (one := files.find(name, job.request.owner)) is not None]
    if (size := sum(one.size for one in stored)) > MOST_OUTPUTS:
        text = f"the results have {size} bytes, and at most {MOST_OUTPUTS} are told so; read output_file."
        raise bad_request(f"inline: {text}", "inline")
    found = []
    for one in stored:
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            found += files.content(one.id).read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in found]
