"""/v1/batches: begun, listed, looked at, cancelled. Their lines are asked by the batcher (actors/batcher/)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from actorserve.actors.files.batches import OPENAI, BatchRequest, NoInput
from actorserve.actors.files.store import FileStore
from actorserve.actors.files.threads import on_disk

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...generation.fields.unsupported import read
from ...openai.batches.objects import batch_object
from ...openai.batches.schemas import BatchRequestBody
from ...openai.responses.requests import check_metadata
from ...openai.responses.schemas import InputItemsQuery
from ...openai.responses.stored import page_of
from ...routes import BATCHED
from ...settings import Settings
from ...transport.json_response import json_response
from .files import find_file, no_file
from .kind import BatchesOfKind
from .requests import check_same, new_id, on_full_disk, owner_of, settings_of

INPUT = "input_file_id"
HOUR_S = 3600


class BatchesApi(BatchesOfKind):
    """Its handlers."""

    kind = OPENAI

    def __init__(self, settings: Settings, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        super().__init__(settings)
        self._read_body = read_body

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/batches."""
        store, owner = self._store, owner_of(request)
        raw = await self._read_body(request)
        body = read(BatchRequestBody, raw)
        check_metadata(body.metadata or {})
        if body.endpoint not in BATCHED:
            raise bad_request(f"endpoint must be one of {', '.join(BATCHED)}.", "endpoint")
        files = FileStore(store.folder, settings_of(self._settings).limit)
        batch_id, created = new_id(request, OPENAI, self._settings)
        digest = hashlib.sha256(raw).hexdigest()
        if (before := await on_disk(store.find, batch_id, owner)) is not None:
            check_same(before.request.digest == digest)
            return json_response(batch_object(before))
        found = await find_file(files, body.input_file_id, owner, INPUT)
        if found.purpose != "batch":
            text = f"{INPUT}: {found.id} has the purpose {found.purpose}; upload it with the purpose batch."
            raise bad_request(text, INPUT)
        asked = BatchRequest(
            id=batch_id,
            endpoint=body.endpoint,
            input_file_id=found.id,
            completion_window=body.completion_window,
            created_at=created,
            expires_at=created + body.hours * HOUR_S,
            owner=owner,
            order=time.time_ns(),
            metadata=body.metadata,
            output_expires_s=None if body.output_expires_after is None else body.output_expires_after.seconds,
            digest=digest,
        )
        try:
            with on_full_disk():
                made = await on_disk(store.create, asked)
        except NoInput:  # it was deleted meanwhile
            raise no_file(found.id, INPUT) from None
        check_same(made.request.digest == digest)  # another with its Idempotency-Key may have been quicker
        return json_response(batch_object(made))

    async def list(self, request: web.Request) -> web.Response:
        """GET /v1/batches."""
        wanted, owner = decode_query(InputItemsQuery, request.query), owner_of(request)
        found = await on_disk(self._store.all_of, owner)
        return json_response(page_of([batch_object(one) for one in found], wanted, "batch"))

    async def retrieve(self, request: web.Request) -> web.Response:
        """GET /v1/batches/{id}."""
        return json_response(batch_object(await self._found(request)))

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /v1/batches/{id}/cancel."""
        found = await self._found(request)
        if found.status == "cancelled":  # the request may be sent again, and then all is as it wanted
            return json_response(batch_object(found))
        if found.has_ended:
            raise ApiError(409, f"Cannot cancel a batch with status '{found.status}'.", "id")
        return json_response(batch_object(await self._cancelled(found)))
