"""--models-max: of a server's models so many are loaded at once, and who is asked beyond that waits for a place.

No lane leads from one model to another's, and nobody is asked: each scheduler goes by the words of all
(shm/kv_map/residency.py, sleep.py). One that sleeps and is asked for something says since when. It wakes once fewer
than so many hold a model and nobody has waited for longer; a lock is held from the look to the word that it wakes, so
that of two only one finds the place. Meanwhile the model that was not asked for the longest time falls asleep behind
what it has begun, or goes on if nobody waits for another any more. What it is asked meanwhile waits, and has it wanted
in turn; a model that has woken has begun with what waited before it looks here, so that each turn brings something.

Of deaths: the words stay. A lock ends with its holder, whose successor finds whether it is to wake; one that is wanted
says so anew in its first turn, and who is wanted by nobody any more says that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from actorserve.shm.end_lock import EndLock, RingBusy
from actorserve.shm.kv_map.layout import WANTED_AT
from actorserve.shm.kv_map.residency import ResidencyWords
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.layout import WORD_BYTES
from actorserve.shm.rings.mailbox import wake

from ...runtime.process import Context


class _Model:
    """One of the server's, by the words of its engines."""

    def __init__(self, context: Context, engines: Sequence[int]) -> None:
        memory, offsets = context.segment.map, context.system.kv_map_offsets
        self._sleeps = [SleepWord(memory, offsets[engine]) for engine in engines]
        self._words = [ResidencyWords(memory, offsets[engine]) for engine in engines]

    @property
    def is_loaded(self) -> bool:
        """Has it a model, or is one loaded or given back?"""
        return any(word.is_held for word in self._words) or not all(one.state.is_parked for one in self._sleeps)

    @property
    def is_draining(self) -> bool:
        return any(one.state.draining for one in self._sleeps)

    @property
    def used_at(self) -> int:
        return max(word.used_at for word in self._words)

    @property
    def wanted_at(self) -> int:
        """Since when; 0: nobody waits for it."""
        return min((at for word in self._words if (at := word.wanted_at)), default=0)


class Residency:
    """Of one scheduler's life: its model's place among those that are loaded."""

    def __init__(self, context: Context) -> None:
        system, own = context.system, context.spec
        self._most = context.config.models_max
        self.is_on = 0 < self._most < len(system.models)
        models = [_Model(context, one.engines) for one in system.models]
        self._own = models[own.model]
        self._others = [model for model in models if model is not self._own]
        self._models = models
        offsets = system.kv_map_offsets
        self._words = ResidencyWords(context.segment.map, offsets[own.engine])
        self._segment, self._lock_at = context.segment, offsets[0] + WANTED_AT * WORD_BYTES
        self._fds = [context.eventfds[one.name] for one in system.of_kind("scheduler") if one.name != context.name]

    def note(self, asked: bool, wants: bool, held: bool) -> None:
        """How it is in this turn. `wants`: it sleeps, and is to wake; `held`: the workers have a model, or have not
        said yet that they have none.
        """
        words = self._words
        if asked:
            words.used_at = time.monotonic_ns()
        if words.wanted_at and not wants:
            self._has_no_wish()
        if words.is_held != held:
            words.is_held = held
            self._wake_others()

    def take(self, wakes: Callable[[], None]) -> None:
        """Something is asked of a model that sleeps: it wakes if there is a place, and else says that it waits."""
        if not self.is_on:
            wakes()
            return
        if not self._words.wanted_at:
            self._words.wanted_at = time.monotonic_ns()
            self._wake_others()
        mine = self._own.wanted_at
        if any(0 < one.wanted_at < mine for one in self._others):
            return
        try:
            lock = EndLock(self._segment, self._lock_at, "a place among the loaded models")
        except RingBusy:  # who holds it is about to wake, and wakes everybody
            return
        try:
            if self._own.is_loaded or sum(one.is_loaded for one in self._others) < self._most:
                wakes()
                self._has_no_wish()
        finally:
            lock.close()

    @property
    def others_wait(self) -> bool:
        """Is another model waited for?"""
        return any(one.wanted_at for one in self._others)

    def is_to_leave(self) -> bool:
        """Is this model, which is loaded, the one that makes room for another?"""
        if not self.others_wait or any(one.is_draining for one in self._others):
            return False
        loaded = [one for one in self._models if one.is_loaded]
        return len(loaded) >= self._most and min(loaded, key=lambda one: one.used_at) is self._own

    def _has_no_wish(self) -> None:
        self._words.wanted_at = 0
        self._wake_others()

    def _wake_others(self) -> None:
        """For them to look: something has changed."""
        for fd in self._fds:
            wake(fd)
