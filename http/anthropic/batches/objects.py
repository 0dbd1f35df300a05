"""Batches as Anthropic's clients read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from actorserve.actors.files.batches import Batch

from ...errors import bad_request

Object = dict[str, Any]


class BatchesQuery(msgspec.Struct):
    """Which batches are listed, the newest first."""

    before_id: str | None = None
    after_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


def message_batch(batch: Batch, path: str) -> Object:
    """A batch. `path`: of all batches. Where its results are is said without a host: clients find them on the way on
    which they have come.
    """
    request, state = batch.request, batch.state
    status = "ended" if batch.has_ended else "in_progress" if batch.cancelled_at is None else "canceling"
    return {
        "id": request.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch),
        "created_at": _time(request.created_at),
        "expires_at": _time(request.expires_at),
        "ended_at": _time(state.ended_at) if batch.has_ended else None,
        "cancel_initiated_at": _time(batch.cancelled_at),
        "archived_at": None,
        "results_url": f"{path}/{request.id}/results" if batch.has_ended else None,
    }


def _counts(batch: Batch) -> dict[str, int]:
    """What is left where the batch could not go on (`internal_error`) has no result, and was an error."""
    state = batch.state
    left = batch.request.total - state.completed - state.failed
    errored = state.failed - state.expired - state.cancelled
    return {
        "processing": 0 if batch.has_ended else left,
        "succeeded": state.completed,
        "errored": errored + left if batch.has_ended else errored,
        "canceled": state.cancelled,
        "expired": state.expired,
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def page_of(items: list[Object], wanted: BatchesQuery) -> Object:
    """These of the items, which are given oldest first, as a list of Anthropic's API."""
    newest = items[::-1]
    begin, end = 0, len(newest)
    if wanted.before_id is not None and wanted.after_id is not None:
        raise bad_request("before_id and after_id: give one of them.", "before_id")
    if wanted.after_id is not None:
        begin = _place(newest, "after_id", wanted.after_id) + 1
        more = end - begin > wanted.limit
    elif wanted.before_id is not None:
        end = _place(newest, "before_id", wanted.before_id)
        begin = max(0, end - wanted.limit)
        more = begin > 0
    else:
        more = end > wanted.limit
    page = newest[begin : min(end, begin + wanted.limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"data": page, "has_more": more, **ends}


def _place(items: list[Object], name: str, wanted: str) -> int:
    place = next((index for index, item in enumerate(items) if item["id"] == wanted), None)
    if place is None:
        raise bad_request(f"{name}: there is no batch {wanted[:64]!r}.", name)
    return place
