"""Stacks of this process's Python threads, as another thread of it sees them every few milliseconds, as slices of a
trace. It ends by itself at its time, or when it is told that nobody wants it any more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

EVERY_S = 0.005
MOST_SLICES = 40_000  # of one process; behind them nothing is recorded
MOST_FRAMES = 60  # of a stack, from its root
MOST_ID = 1 << 31  # of a thread, in a trace
Entry = dict[str, Any]
Frame = tuple[str, str, int]  # function, file, line of its beginning


class StackSampler:
    """Samples until `is_wanted` says no, then gives its slices to `done`, in its own thread."""

    def __init__(self, pid: int, is_wanted: Callable[[], bool], done: Callable[[list[Entry], bool], None]) -> None:
        self._pid, self._is_wanted, self._done = pid, is_wanted, done
        self._slices: list[Entry] = []
        self._open: dict[int, list[tuple[Frame, float]]] = {}  # by thread: frames and since when, from the root
        self.cut = False
        self.thread = threading.Thread(target=self._run, name="profile", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        own, now = threading.get_ident(), time.time_ns() / 1e3
        while self._is_wanted():
            now = time.time_ns() / 1e3
            frames = sys._current_frames()
            for thread in {*frames, *self._open} - {own}:
                self._seen(thread, frames.get(thread), now)
            time.sleep(EVERY_S)  # it is a clock
        for thread in list(self._open):
            self._close(thread, 0, now)
        self._done(self._slices + self._names(), self.cut)

    def _seen(self, thread: int, frame: FrameType | None, now: float) -> None:
        """Frames that have gone are slices now, those that have come are open."""
        stack = stack_of(frame)
        before = self._open.setdefault(thread, [])
        common = 0
        while common < min(len(stack), len(before)) and before[common][0] == stack[common]:
            common += 1
        self._close(thread, common, now)
        before += [(one, now) for one in stack[common:]]

    def _close(self, thread: int, depth: int, now: float) -> None:
        opened = self._open[thread]
        while len(opened) > depth:
            (name, file, line), since = opened.pop()
            if len(self._slices) >= MOST_SLICES:
                self.cut = True
                continue
            own = {"ph": "X", "name": name, "ts": since, "dur": now - since, "pid": self._pid, "tid": thread % MOST_ID}
            self._slices.append({**own, "args": {"at": f"{file}:{line}"}})

    def _names(self) -> list[Entry]:
        named = {thread.ident: thread.name for thread in threading.enumerate()}
        return [
            {
                **{"ph": "M", "name": "thread_name", "pid": self._pid, "tid": thread % MOST_ID},
                "args": {"name": f"{named.get(thread, 'a thread')} (sampled)"},
            }
            for thread in self._open
        ]


def stack_of(frame: FrameType | None) -> list[Frame]:
    """From the root on."""
    found: list[Frame] = []
    while frame is not None:
        code = frame.f_code
        found.append((code.co_qualname, code.co_filename, code.co_firstlineno))
        frame = frame.f_back
    return found[::-1][:MOST_FRAMES]
