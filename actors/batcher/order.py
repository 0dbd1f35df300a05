"""Which batches begin: those that have only to end at once, and of each owner the oldest in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..files.batches import Batch, BatchRequest

MOST_RUNNING = 16  # batches
MOST_ENDING = 16  # beyond these


def next_of(waiting: Iterable[Batch], running: list[BatchRequest], now: float) -> list[Batch]:
    """Of those that wait. `now`: Unix seconds."""
    ending, others = list[Batch](), list[Batch]()
    for one in sorted(waiting, key=lambda one: (one.request.order, one.id)):
        (ending if one.cancelled_at is not None or one.request.expires_at <= now else others).append(one)
    room = MOST_RUNNING - len(running)
    return ending[: max(0, room + MOST_ENDING)] + _in_turn(others, running)[: max(0, room)]


def _in_turn(oldest: list[Batch], running: list[BatchRequest]) -> list[Batch]:
    """Who has fewer that run, or stand before it, is first."""
    before = Counter(one.owner.client for one in running)
    ranks = dict[str, int]()
    for one in oldest:
        client = one.request.owner.client
        ranks[one.id] = before[client]
        before[client] += 1
    return sorted(oldest, key=lambda one: ranks[one.id])
