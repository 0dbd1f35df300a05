"""A worker of an engine that sleeps: no model, no KV memory, nothing to compute. It waits until it is wanted.

The worker before it has ended with all that it had in memory; this life gives back what outlives a worker, its KV
memory's file, and, at level 2, the pages of the model's files that the system keeps. What it is to do stands in shared
memory (shm/kv_map/sleep.py): it looks there at each message and each turn, so that no message can be missed. Once a
model is wanted again it ends to be replaced (RENEW), and the next life loads it. Killed at any line, it has a successor
that begins anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from actorserve.shm.kv_map.sleep import SleepWord

from ..model.gguf.folder import gguf_tensors
from ..protocol.administration import LookAtSleep, Parked
from ..protocol.messages import Hello, ToWorker
from ..runtime.process import RENEW, Actor, Context

DROPS = 2  # the level at which weights leave the page cache, too


def sleep_word(context: Context) -> SleepWord:
    """That of this worker's engine."""
    return SleepWord(context.segment.map, context.system.kv_map_offsets[context.spec.engine])


class ParkedWorker(Actor):
    """One member of the group."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._word = sleep_word(context)
        self._level = 0  # what was given back
        self._scheduler = context.system.scheduler_of(context.spec.engine)
        os.ftruncate(context.files[f"kv-{context.spec.name}"], 0)
        context.log.info("parked: the engine sleeps")
        self._give_back()

    def handle(self, message: ToWorker) -> None:
        """A scheduler wants to know, or wants more; plans are of a worker that is gone."""
        if isinstance(message, Hello | LookAtSleep):
            self._give_back()

    def do_work(self) -> int:
        """The word may have changed while nobody could say so."""
        state = self._word.state
        if not state.is_parked:
            self.context.log.info("the engine wakes")
            sys.exit(RENEW)
        if state.level != self._level:
            self._give_back()
        return 0

    def _give_back(self) -> None:
        state = self._word.state
        if not state.is_parked:
            return
        if state.level >= DROPS and self._level < DROPS:
            drop_cached(self.context.model.folder)
        self._level = state.level
        self.context.post(self._scheduler, Parked(self.context.spec.index, self._level))


def drop_cached(folder: str) -> None:
    """The system need not keep these files' pages; it does while somebody maps them."""
    found = gguf_tensors(Path(folder))
    paths = set(Path(folder).iterdir()) if found is None else {path for path, _, _ in found[1]}
    for path in sorted(path for path in paths if path.is_file()):
        with contextlib.suppress(PermissionError):  # then it is not this server that has read it
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
