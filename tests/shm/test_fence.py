"""Fences: what can be said of them without another machine."""

from __future__ import annotations

import platform
import sys
import threading

from actorserve.shm import fence


def test_a_fence_can_be_used_again_and_again() -> None:
    for _ in range(3):
        fence.full_fence()
        fence.store_fence()
        fence.load_fence()
    assert not fence._own.acquire(blocking=False), "the lock is held between two fences"


def test_only_store_to_load_costs_anything_on_x86() -> None:
    if platform.machine() == "x86_64":
        assert fence.store_fence is not fence.full_fence and fence.load_fence is not fence.full_fence
    else:
        assert fence.store_fence is fence.full_fence and fence.load_fence is fence.full_fence


def test_threads_of_one_process_have_fences_at_once() -> None:
    """Two LLMs in one process have a loop each; with one lock for all, one found it released by another."""
    failed: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(20000):
                fence.full_fence()
        except RuntimeError as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed
