"""Fences: what can be said of them without another machine."""

from __future__ import annotations

import platform

from actorserve.shm import fence


def test_a_fence_can_be_used_again_and_again() -> None:
    for _ in range(3):
        fence.full_fence()
        fence.store_fence()
        fence.load_fence()
    assert fence._lock.locked(), "the lock is held between two fences"


def test_only_store_to_load_costs_anything_on_x86() -> None:
    if platform.machine() == "x86_64":
        assert fence.store_fence is not fence.full_fence and fence.load_fence is not fence.full_fence
    else:
        assert fence.store_fence is fence.full_fence and fence.load_fence is fence.full_fence
