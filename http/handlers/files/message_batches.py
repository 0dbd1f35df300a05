"""/v1/messages/batches: Anthropic's batches, begun, listed, looked at, read, cancelled, removed.

Each is a folder of --files-dir (actors/files/folder.py), and its lines are asked by the batcher, as OpenAI's are. This
frontend cuts the requests out of the body as it comes and writes them as lines into a place in tmp, which becomes the
batch once all of them are there; the batcher writes what comes of them into the same folder, and there it is read. What
a death leaves:
    of a frontend, within the body    a place in tmp, which the batcher removes. The successor reads the request again,
                                      and makes the same id of it, where it is no longer than --max-body-bytes; a longer
                                      one is reset, and sent again by its client
    of a frontend, behind that        the batch; the successor finds it, and answers with it
    of the batcher                    what it leaves of OpenAI's batches (actors/files/folder.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from actorserve.actors.files.batches import ANTHROPIC, Batch, BatchRequest
from actorserve.actors.files.store import FileStore, NoRoom, Upload
from actorserve.actors.files.threads import on_disk

from ...anthropic.batches.objects import BatchesQuery, message_batch, page_of
from ...anthropic.batches.requests import MOST_BYTES, RequestCutter
from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...paths.files import MESSAGE_BATCHES
from ...paths.responses import MESSAGES
from ...settings import Settings
from ...transport.body import BodyBudget
from ...transport.json_response import json_response
from ...transport.upload import read_json
from .kind import BatchesOfKind
from .requests import (
    check_same,
    folder_of,
    new_id,
    no_room,
    note_found,
    on_full_disk,
    owner_of,
    settings_of,
    was_found,
)
from .sending import send_files

WINDOW_S = 24 * 3600
LINES = "application/x-jsonl"
REQUESTS = "requests"


class MessageBatchesApi(BatchesOfKind):
    """Its handlers."""

    kind, noun = ANTHROPIC, "message batch"

    def __init__(self, settings: Settings, longest: int, unfinished: BodyBudget) -> None:
        """`longest`: bytes of a request; `unfinished`: what those take that have not come whole, with all bodies."""
        super().__init__(settings)
        self._longest, self._unfinished = longest, unfinished

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/messages/batches."""
        limit = settings_of(self._settings).limit
        batch_id, created = new_id(request, ANTHROPIC, self._settings)
        upload = FileStore(folder_of(self._settings), limit).upload_batch(batch_id)
        try:
            with on_full_disk():
                await on_disk(upload.begin)
                total = await self._read(request, upload)
                asked = BatchRequest(
                    id=batch_id,
                    endpoint=MESSAGES,
                    input_file_id="",
                    completion_window="24h",
                    created_at=created,
                    expires_at=created + WINDOW_S,
                    owner=owner_of(request),
                    order=time.time_ns(),
                    digest=upload.digest,
                    total=total,
                )
                made = await on_disk(upload.keep_as_batch, asked)
        except NoRoom as error:
            raise no_room(error, REQUESTS, limit) from None
        finally:
            await on_disk(upload.drop)
        check_same(made.request.digest == upload.digest)
        return _told(made)

    async def _read(self, request: web.Request, upload: Upload) -> int:
        """How many requests there are."""
        cutter, size = RequestCutter(MESSAGES, self._longest), 0

        async def write(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > MOST_BYTES:
                raise ApiError(413, f"A batch's body has at most {MOST_BYTES} bytes.", REQUESTS)
            await on_disk(_write, cutter.take, piece, upload)

        await read_json(request, write, self._unfinished, lambda: cutter.held)
        cutter.finish()
        return cutter.total

    async def list(self, request: web.Request) -> web.Response:
        """GET /v1/messages/batches."""
        wanted = decode_query(BatchesQuery, request.query)
        found = await on_disk(self._store.all_of, owner_of(request), ANTHROPIC)
        return json_response(page_of([message_batch(one, MESSAGE_BATCHES) for one in found], wanted))

    async def retrieve(self, request: web.Request) -> web.Response:
        """GET /v1/messages/batches/{id}."""
        return _told(await self._found(request))

    async def results(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/messages/batches/{id}/results."""
        found = await self._found(request)
        if not found.has_ended:
            raise ApiError(404, f"{found.id} has not ended: there are no results yet.", "id")
        try:
            return await send_files(request, self._store.answers(found.id), LINES)
        except FileNotFoundError:  # it was removed meanwhile
            raise self._missing(found.id) from None

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /v1/messages/batches/{id}/cancel."""
        found = await self._found(request)
        if found.has_ended and found.cancelled_at is None:
            raise bad_request(f"{found.id} has ended: only one that is processed can be canceled.", "id")
        if found.has_ended:  # the request may be sent again
            return _told(found)
        return _told(await self._cancelled(found))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/messages/batches/{id}."""
        batch_id = request.match_info["id"]
        if not was_found(request):
            found = await self._found(request)
            if not found.has_ended:
                raise bad_request(f"{found.id} has not ended: cancel it first.", "id")
        note_found(request)
        await on_disk(self._store.delete, batch_id)
        return json_response({"id": batch_id, "type": "message_batch_deleted"})


def _told(batch: Batch) -> web.Response:
    return json_response(message_batch(batch, MESSAGE_BATCHES))


def _write(lines: Callable[[bytes], bytes], piece: bytes, upload: Upload) -> None:
    upload.write(lines(piece))
