"""/v1/files: kept, listed, read, removed."""

from __future__ import annotations

import msgspec
from aiohttp import web

from actorserve.actors.files.owner import Owner
from actorserve.actors.files.store import FileStore, InUse, NoRoom, StoredFile, Upload
from actorserve.actors.files.threads import on_disk

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode_query
from ...openai.batches.objects import file_object, sample_type, source
from ...openai.batches.schemas import PURPOSES, UNSAID, FileExpiry, FilesQuery
from ...openai.responses.stored import page_of
from ...settings import Settings, printable
from ...transport.body import BodyBudget
from ...transport.json_response import json_response
from ...transport.upload import read_upload
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
from .sending import send_files

PREFIX = "file-"
NAME = 255  # characters
EXPIRY = "expires_after"
BINARY = "application/octet-stream"


class FilesApi:
    """Its handlers."""

    def __init__(self, settings: Settings, unfinished: BodyBudget) -> None:
        """`unfinished`: what uploads that have not come whole may take, with all bodies."""
        self._settings, self._unfinished = settings, unfinished

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/files."""
        store = self._store
        file_id, created = new_id(request, PREFIX, self._settings)
        upload = store.upload(file_id)
        try:
            with on_full_disk():
                await on_disk(upload.begin)
                return json_response(file_object(await self._read(request, upload, created)))
        except NoRoom as error:
            raise no_room(error, "file", settings_of(self._settings).limit) from None
        except InUse as error:
            text = f"The file of this Idempotency-Key has expired, and is read by {error} still: use another key."
            raise ApiError(409, text, "Idempotency-Key", "file_in_use") from None
        finally:
            await on_disk(upload.drop)

    async def _read(self, request: web.Request, upload: Upload, created: int) -> StoredFile:
        async def write(piece: bytes) -> None:
            await on_disk(upload.write, piece)

        filename, fields = await read_upload(request, "file", write, self._unfinished)
        if filename is None:
            raise bad_request("file is missing: it is a part of the form, with a filename.", "file")
        purpose = fields.get("purpose", UNSAID)
        if purpose not in PURPOSES:
            raise bad_request(f"purpose must be one of {', '.join(PURPOSES)}.", "purpose")
        expires_s, name = _expires_s(fields), printable(filename[:NAME]) or "file"
        stored = await on_disk(upload.keep, owner_of(request), name, purpose, created, expires_s)
        check_same((stored.digest, stored.purpose) == (upload.digest, purpose))
        return stored

    async def list(self, request: web.Request) -> web.Response:
        """GET /v1/files."""
        wanted = decode_query(FilesQuery, query_of(request, "sample_type", "source"))
        found = await on_disk(self._store.all, owner_of(request))
        items = [
            file_object(one)
            for one in found
            if wanted.purpose in (None, one.purpose)
            and (not wanted.sample_type or sample_type(one) in wanted.sample_type)
            and (not wanted.source or source(one) in wanted.source)
            and (wanted.search or "") in one.filename
        ]
        if wanted.page is None:
            return json_response(page_of(items, wanted, "file"))
        page = items[::-1][wanted.page * wanted.page_size :][: wanted.page_size]
        return json_response({"object": "list", "data": page, "total": len(items)})

    async def retrieve(self, request: web.Request) -> web.Response:
        """GET /v1/files/{id}."""
        return json_response(file_object(await self._found(request)))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/files/{id}."""
        file_id = request.match_info["id"]
        found = await on_disk(self._store.find, file_id, owner_of(request))
        if found is None and not was_found(request):
            raise no_file(file_id)
        note_found(request)
        try:
            await on_disk(self._store.delete, file_id)
        except InUse as error:
            text = f"{file_id} is read by {error}, which has not ended: cancel that first."
            raise ApiError(409, text, "id", "file_in_use") from None
        return json_response({"id": file_id, "object": "file", "deleted": True})

    async def content(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/files/{id}/content."""
        found = await self._found(request)
        try:
            return await send_files(request, [self._store.content(found.id)], BINARY)
        except FileNotFoundError:  # it was removed meanwhile
            raise no_file(found.id) from None

    # --- which one -----------------------------------------------------------------------------------------------

    @property
    def _store(self) -> FileStore:
        return FileStore(folder_of(self._settings), settings_of(self._settings).limit)

    async def _found(self, request: web.Request) -> StoredFile:
        return await find_file(self._store, request.match_info["id"], owner_of(request))


async def find_file(store: FileStore, file_id: str, owner: Owner, param: str = "id") -> StoredFile:
    """404 for what is not there, or another's."""
    found = await on_disk(store.find, file_id, owner)
    if found is None:
        raise no_file(file_id, param)
    return found


def no_file(file_id: str, param: str = "id") -> ApiError:
    """As OpenAI says it."""
    return ApiError(404, f"No such File object: {printable(file_id)[:64]}", param)


def _expires_s(fields: dict[str, str]) -> int | None:
    given = {name: fields[f"{EXPIRY}[{name}]"] for name in ("anchor", "seconds") if f"{EXPIRY}[{name}]" in fields}
    if not given:
        return None
    try:
        return msgspec.convert(given, FileExpiry, strict=False).seconds
    except msgspec.ValidationError as error:
        raise bad_request(f"{EXPIRY}: {error}", EXPIRY) from None
