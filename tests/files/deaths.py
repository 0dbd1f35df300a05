"""A process that dies within a call of the kernel: at each of them that some work makes, one after the other."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

CALLS = "open mkdir write fsync rename ftruncate unlink rmdir".split()
DIED, FAILED = 9, 1


def deaths(work: Callable[[], object]) -> Iterator[int]:
    """Does `work` in a process of its own, which ends as abruptly as by kill -9 before its first call, its second, and
    so on: after each of these deaths the number of calls that were made. It ends once the work comes to its end.
    """
    calls = 0
    while dies(work, calls):
        yield calls
        calls += 1
    assert calls, "the work made no call"


def dies(work: Callable[[], object], calls: int) -> bool:
    """Does it, before it makes another call than so many?"""
    if (pid := os.fork()) == 0:
        _live(work, calls)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, DIED), f"the work failed before call {calls}"
    return status == DIED


def _live(work: Callable[[], object], calls: int) -> None:
    left = [calls]

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            if not left[0]:
                os._exit(DIED)
            left[0] -= 1
            return call(*given, **named)

        return made

    try:
        for name in CALLS:
            setattr(os, name, mortal(getattr(os, name)))
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)
