"""Death before any bytecode: run an operation and raise just before the k-th bytecode that it executes in shm/."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, TypeVar

S = TypeVar("S")
SCENES = 100  # behind which their descriptors are counted
MOST_DESCRIPTORS = 300  # an Abort's traceback may hold what was aborted, with its own


class Abort(BaseException):
    """What stands for a kill: nothing in shm/ may catch it."""


def aborted(operation: Callable[[], object], at: int, modules: tuple[ModuleType, ...]) -> bool:
    """Run until bytecode number `at` (from 1) of these modules; False if the operation ended before."""

    def die(count: int) -> None:
        if count == at:
            raise Abort

    return _traced(operation, die, modules)


def interrupted(
    operation: Callable[[], object], at: int, other: Callable[[], object], modules: tuple[ModuleType, ...]
) -> bool:
    """Run, with what another process does just before bytecode number `at` of these modules; False if it ended before.
    The other's are not counted.
    """
    reached = False

    def meanwhile(count: int) -> None:
        nonlocal reached
        if count == at:
            reached = True
            other()

    _traced(operation, meanwhile, modules)
    return reached


def _traced(
    operation: Callable[[], object], before_each: Callable[[int], None], modules: tuple[ModuleType, ...]
) -> bool:
    """Run with a call before each bytecode of these modules, which has its number; True if that was an Abort."""
    files = {module.__file__ for module in modules}
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        nonlocal count
        if frame.f_code.co_filename not in files or frame.f_code.co_name == "__del__":  # what that raises goes nowhere
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            before_each(count)
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it here alone, and when tracing begins
    sys.settrace(trace)
    try:
        operation()
    except Abort:
        return True
    finally:
        sys.settrace(before)
    return False


def collect_if_many_are_left() -> None:
    """Late in a run a collection takes a tenth of a second; most scenes leave nothing to it."""
    if len(os.listdir("/proc/self/fd")) > MOST_DESCRIPTORS:
        gc.collect()


def every_abort(
    make: Callable[[], S], act: Callable[[S], Callable[[], object]], modules: tuple[ModuleType, ...], minimum: int = 20
) -> Iterator[tuple[S, bool]]:
    """For each k: make a scene, abort the operation that `act` returns before its bytecode k, yield (scene, True).

    The last is (scene, False): the operation came to its end. What only the operation referred to is gone by then.
    `minimum` guards against tracing nothing at all.
    """
    at, was_aborted = 0, True
    while was_aborted:
        at += 1
        if at % SCENES == 0:
            collect_if_many_are_left()
        scene = make()
        operation = act(scene)
        was_aborted = aborted(operation, at, modules)
        del operation
        yield scene, was_aborted
    assert at > minimum, f"only {at - 1} bytecodes were traced"


def every_state(
    make: Callable[[], S],
    act: Callable[[S], Callable[[], object]],
    modules: tuple[ModuleType, ...],
    survives: Callable[[S], object],
    minimum: int,
) -> Iterator[tuple[S, bool]]:
    """`every_abort` where making a scene is dear: of the bytecodes before which all that survives a death is the same,
    which are nine in ten, only the first. Nobody could tell them apart, and so no test: scenes are the same each time.
    """
    scene = make()
    last, ends = None, []

    def look(count: int) -> None:
        nonlocal last
        now = survives(scene)
        if now != last:
            last = now
            ends.append(count)

    _traced(act(scene), look, modules)
    assert len(ends) > minimum, f"only {len(ends)} states were seen"
    for number, at in enumerate(ends):
        if number % SCENES == SCENES - 1:
            collect_if_many_are_left()
        scene = make()
        assert aborted(act(scene), at, modules)
        yield scene, True
    scene = make()
    act(scene)()
    yield scene, False
