"""What handlers of all kinds of batches do alike: find the one that a request is about, and cancel it."""

from __future__ import annotations

from typing import ClassVar

from aiohttp import web

from actorserve.actors.files.batches import Batch, BatchStore
from actorserve.actors.files.threads import on_disk

from ...errors import ApiError
from ...settings import Settings, printable
from .requests import folder_of, on_full_disk, owner_of


class BatchesOfKind:
    """Handlers of one kind's."""

    kind: ClassVar[str]  # how their ids begin
    noun: ClassVar[str] = "batch"  # to clients

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def _store(self) -> BatchStore:
        return BatchStore(folder_of(self._settings))

    async def _found(self, request: web.Request) -> Batch:
        name = request.match_info["id"]
        found = await on_disk(self._store.find, name, owner_of(request), self.kind)
        if found is None:
            raise self._missing(name)
        return found

    async def _cancelled(self, found: Batch) -> Batch:
        """The same, no more lines of which are begun."""
        with on_full_disk():
            cancelled = await on_disk(self._store.cancel, found.id)
        if cancelled is None:
            raise self._missing(found.id)
        return cancelled

    def _missing(self, name: str) -> ApiError:
        return ApiError(404, f"No {self.noun} found with id '{printable(name)[:64]}'.", "id")
