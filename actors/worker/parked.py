"""A worker of an engine that sleeps: no model, no KV memory, nothing to compute. It waits until it is wanted. One whose
new weights cannot be loaded waits likewise, until it is to have others (shm/weights.py); and so does one of several
models that cannot be loaded behind the server's start: the engine sleeps until it is asked for.

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
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.weights import WeightsRecord

from ..model.forms import as_read
from ..model.gguf.folder import gguf_tensors
from ..options.config import ConfigError, PassingError
from ..protocol.messages import Hello, ToWorker
from ..protocol.sockets.keeper_wire import KEEPER
from ..protocol.topics.administration import CallMethod, LookAtSleep, MethodCalled, Parked, Unloadable
from ..runtime.process import RENEW, Actor, Context

DROPS = 2  # the level at which weights leave the page cache, too


def sleep_word(context: Context) -> SleepWord:
    """That of this worker's engine."""
    return SleepWord(context.segment.map, context.system.kv_map_offsets[context.spec.engine])


class ParkedWorker(Actor):
    """One member of the group."""

    def __init__(self, context: Context, failed: Unloadable | None = None) -> None:
        """`failed`: why there is no model, though one is wanted."""
        self.context = context
        self._failed = failed
        self._weights = WeightsRecord(context.files["weights"], context.spec.engine)
        self._word = sleep_word(context)
        self._level = 0  # what was given back
        self._scheduler = context.system.scheduler_of(context.spec.engine)
        os.ftruncate(context.files[f"kv-{context.spec.name}"], 0)
        if context.config.keep_kv:
            from .kept_memory.device import drop

            drop(context.files[KEEPER], context.spec.name, context.log)
        if failed is None:
            context.log.info("parked: the engine sleeps")
        self._say()

    def handle(self, message: ToWorker) -> None:
        """A scheduler wants to know, or wants more; plans are of a worker that is gone."""
        if isinstance(message, LookAtSleep) and self._failed is not None:
            sys.exit(RENEW)  # the next life does what is wanted now
        if isinstance(message, Hello | LookAtSleep):
            self._say()
        if isinstance(message, CallMethod):
            rank = self.context.spec.index
            self.context.post(self._scheduler, MethodCalled(message.call, rank, problem="the server sleeps"))

    def do_work(self) -> int:
        """The word may have changed while nobody could say so."""
        state = self._word.state
        if self._failed is not None:
            if state.is_parked or self._failed.generation != self._weights.generation:
                sys.exit(RENEW)
        elif not state.is_parked:
            self.context.log.info("the engine wakes")
            sys.exit(RENEW)
        elif state.level != self._level:
            self._say()
        return 0

    def _say(self) -> None:
        """How it is; more is given back if that is wanted now."""
        if self._failed is not None:
            self.context.post(self._scheduler, self._failed)
            self.context.flush()  # before it may end
            return
        state = self._word.state
        if not state.is_parked:
            return
        if state.level >= DROPS and self._level < DROPS:
            drop_cached(self.context.model.folder)
        self._level = state.level
        self.context.post(self._scheduler, Parked(self.context.spec.index, self._level))


Made = TypeVar("Made")


def load_weights(context: Context, load: Callable[[Context], Made]) -> Made | ParkedWorker:
    """What `load` makes of the model with the weights that it is to have now. Where these are not the served model's
    own and cannot be loaded, nobody dies of it: the scheduler goes back to those before. Nor where they are those of
    one of several models, and this is not the server's start: it sleeps until it is asked for. What may be had at the
    next try is tried so, where the model was not asleep.
    """
    generation, folder = WeightsRecord(context.files["weights"], context.spec.engine).read()
    try:
        if folder:
            context.log.info("weights of generation %d: %s", generation, folder)
            own = as_read(context.config, Path(folder))
            context.model = msgspec.structs.replace(context.model, folder=str(own))
        return load(context)
    except ConfigError as error:
        if not (folder or (len(context.system.models) > 1 and context.incarnation > 1)):
            raise
        if not folder and isinstance(error, PassingError) and not sleep_word(context).state.wakes:
            raise  # streams of the life before go on in the next one (scheduler/administration/loading.py)
        context.log.error("%s", error)
        return ParkedWorker(context, Unloadable(generation, str(error)))


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
