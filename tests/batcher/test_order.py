"""Which batches begin."""

from __future__ import annotations

import msgspec

from actorserve.actors.batcher.order import MOST_ENDING, MOST_RUNNING, next_of
from actorserve.actors.files.batches import Batch, BatchRequest, BatchState
from actorserve.actors.files.owner import Owner
from tests.files.test_store import request

NOW = 100.0


def asked(order: int, client: str = "a", expires_at: int = 200) -> BatchRequest:
    return msgspec.structs.replace(
        request(), id=f"batch_{order:024d}", order=order, owner=Owner(client), expires_at=expires_at
    )


def batches(*requests: BatchRequest, cancelled_at: int | None = None) -> list[Batch]:
    return [Batch(one, BatchState(), cancelled_at) for one in requests]


def orders(found: list[Batch]) -> list[int]:
    return [one.request.order for one in found]


def test_the_oldest_begin_where_there_is_room() -> None:
    waiting = batches(*(asked(order) for order in range(30, 0, -1)))
    running = [asked(100)]
    assert orders(next_of(waiting, running, NOW)) == list(range(1, MOST_RUNNING))
    assert next_of(waiting, [asked(order) for order in range(100, 100 + MOST_RUNNING)], NOW) == []


def test_owners_have_their_turns() -> None:
    """However many one of them has begun, and who has some that run is behind who has none."""
    waiting = batches(*(asked(order) for order in range(30)), asked(40, "b"), asked(41, "b"), asked(42, "c"))
    assert orders(next_of(waiting, [], NOW))[:6] == [0, 40, 42, 1, 41, 2]
    running = [asked(100 + number) for number in range(MOST_RUNNING - 2)]
    assert orders(next_of(waiting, running, NOW)) == [40, 42]


def test_what_has_only_to_end_waits_for_nobody() -> None:
    running = [asked(100 + number) for number in range(MOST_RUNNING)]
    over = batches(asked(5), cancelled_at=1) + batches(asked(6, expires_at=100))
    assert orders(next_of(batches(asked(1)) + over, running, NOW)) == [5, 6]
    many = batches(*(asked(order) for order in range(100)), cancelled_at=1)
    assert len(next_of(many, running, NOW)) == MOST_ENDING
