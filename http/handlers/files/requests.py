"""What files and batches of both kinds have in common: their folder, whose request it is, and the id that it makes."""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from actorserve.actors.files.folder import Folder
from actorserve.actors.files.owner import Owner
from actorserve.actors.files.store import NoRoom

from ...errors import ApiError
from ...generation.idempotency import key_of
from ...middleware.context import ACCOUNT, CLIENT
from ...settings import FileSettings, Settings
from ...transport.resume import record_of
from ..answering import follow

ID_DIGITS = 24


def settings_of(settings: Settings) -> FileSettings:
    """404 without --files-dir."""
    if settings.files is None:
        text = "This server was started without --files-dir, and keeps no files and batches."
        raise ApiError(404, f"{text} `actorserve run-batch` answers a file of requests without.")
    return settings.files


def folder_of(settings: Settings) -> Folder:
    """The same of its folder."""
    return Folder(settings_of(settings).folder)


def owner_of(request: web.Request) -> Owner:
    """Who asks."""
    account = request.get(ACCOUNT)
    return Owner(request[CLIENT], "" if account is None else account.name)


def new_id(request: web.Request, prefix: str, settings: Settings) -> tuple[str, int]:
    """(what the request makes, when it did): the same where it is sent again with its Idempotency-Key, and where a
    frontend died with it in hand, whose successor is told by the connection's record.
    """
    place = request[CLIENT], request.path
    key = key_of(request.headers, place, b"", 1, settings.idempotent_request_ids)
    if key is not None and settings.idempotency_window_s:
        return prefix + key.name.hex()[:ID_DIGITS], int(time.time())
    record = record_of(request)
    before = None if record is None else record.predecessor
    seed, created = (secrets.randbits(64), int(time.time())) if before is None else (before.seed, before.created)
    follow(request, seed, created)
    return f"{prefix}{seed:016x}{created:08x}", created


def was_found(request: web.Request) -> bool:
    """Has a frontend died with this request in hand that had found what it is about? Then it may be done already."""
    record = record_of(request)
    return record is not None and record.predecessor is not None


def note_found(request: web.Request) -> None:
    """For `was_found`, of a successor."""
    follow(request, 0, int(time.time()))


@contextlib.contextmanager
def on_full_disk() -> Iterator[None]:
    """507."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ApiError(507, "The disk of --files-dir is full.") from None


def no_room(error: NoRoom, param: str, limit: int) -> ApiError:
    """413 for what --files-limit leaves no room for."""
    if error.alone:
        return ApiError(413, f"{param}: it is longer than the {limit} bytes of --files-limit.", param)
    text = f"{param}: with those that are there it is more than the {limit} bytes of --files-limit. Delete some."
    return ApiError(413, text, param)


def query_of(request: web.Request, *several: str) -> dict[str, Any]:
    """Its parameters, of which these may come several times."""
    query = request.query
    return {**query, **{name: query.getall(name) for name in several if name in query}}


def check_same(is_same: bool) -> None:
    """422 for a key that was used for another request."""
    if not is_same:
        raise ApiError(422, "This Idempotency-Key was used for a request with another body.", "Idempotency-Key")
