"""The pool of threads: whom the caller waits for, and for whom it does not."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native.library import Library, load
from tests.support.compiler import need_compiler

TASK_S = 0.1
PATIENCE_S = 5.0  # that the other thread has to begin
TRIALS = 8
TASKS = 8
BACK_S = 60.0  # that a thread has to come back
Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


class Phase(ctypes.Structure):
    """threads.h's phase."""

    _fields_ = (("run", Task), ("arg", ctypes.c_void_p), ("count", ctypes.c_int))


@pytest.fixture(scope="module")
def library() -> Library:
    need_compiler()
    return load(cpu_flags())


def threads_of(library: Library, pool: int, counts: Sequence[int], does: Callable[[int], None]) -> list[list[int]]:
    """Which thread had each task of one region, by phase; of so many tasks each."""
    had = [[-1] * count for count in counts]

    def one(phase: int) -> Any:
        def run(arg: int | None, index: int, count: int) -> None:
            had[phase][index] = library.number("pool_thread")
            does(had[phase][index])

        return Task(run)

    phases = (Phase * len(counts))(*(Phase(one(number), None, count) for number, count in enumerate(counts)))
    function = library.function("pool_run_phases", ctypes.c_void_p, ctypes.POINTER(Phase), ctypes.c_int)
    function(pool, phases, len(counts))
    return had


class Neighbour:
    """What a phase's tasks do: the caller's begin their work when the other thread has one, too."""

    def __init__(self, own_s: float, other_s: float) -> None:
        """Seconds that the caller's take from then on, and the other thread's in all; -1: as long as all, and more."""
        self._began, self._own_s, self._other_s = threading.Event(), own_s, other_s
        self._begin = time.monotonic()
        self.ended = False  # the other thread's

    def __call__(self, number: int) -> None:
        if number == 0:
            self._began.wait(PATIENCE_S)
            time.sleep(self._own_s)
            return
        waited = time.monotonic() - self._begin
        self._began.set()
        time.sleep(self._other_s if self._other_s >= 0 else 1 + 10 * waited)
        self.ended = True


@contextmanager
def pool_of_two(library: Library) -> Iterator[int]:
    made: int = library.functions.pool_create(2)
    try:
        yield made
    finally:
        library.functions.pool_destroy(made)


def goes_on_with_others(library: Library) -> bool:
    """Whether a caller does so that has waited for a task which took twice as long as its own."""
    with pool_of_two(library) as pool:
        threads_of(library, pool, [2], Neighbour(TASK_S, 2 * TASK_S))
        return set(threads_of(library, pool, [4], Neighbour(0, 0))[0]) == {0, 1}


def test_a_caller_that_waits_for_a_task_as_long_as_its_own_goes_on_with_others(library: Library) -> None:
    """Those of long prompts take milliseconds, and who ends first waits for the other. On a busy machine one may really
    stand still, but not each time."""
    assert any(goes_on_with_others(library) for _ in range(TRIALS))


def test_a_caller_whose_neighbour_stands_still_goes_on_alone(library: Library) -> None:
    with pool_of_two(library) as pool:
        assert sorted(threads_of(library, pool, [2], Neighbour(0, -1))[0]) == [0, 1]
        (then,) = threads_of(library, pool, [4], lambda number: time.sleep(TASK_S / 10))
    assert set(then) == {0}, "the other one had been away for far longer than a task takes"


@pytest.mark.parametrize("regions", [1, 2])
def test_others_come_back_into_a_region_that_began_without_them(library: Library, regions: int) -> None:
    """A step is one region. They left it, or it began while the caller was alone."""
    back, stalls = threading.Event(), Neighbour(0, -1)
    end, alone = time.monotonic() + BACK_S, 0  # tasks that the caller has had one after another

    def does(number: int) -> None:
        nonlocal alone
        if not stalls.ended:
            stalls(number)
        elif number == 0:
            alone += 1
            if time.monotonic() < end:
                back.wait(TASK_S / 10)
        elif alone >= 2 * TASKS:  # all of a phase at least
            back.set()
        else:
            alone = 0

    with pool_of_two(library) as pool:
        if regions == 2:
            threads_of(library, pool, [2], does)
        threads_of(library, pool, [2] * (regions == 1) + [TASKS] * 2000, does)
    assert back.is_set()
