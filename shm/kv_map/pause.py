"""Whether an engine plans steps: one word, with the KV map, so that a successor of its scheduler holds, too.

The scheduler alone writes it. Anyone may read it.
"""

from __future__ import annotations

import mmap
from enum import IntEnum

from .layout import HEADER_BYTES, PAUSE


class PauseState(IntEnum):
    """What an engine does with its requests."""

    RUNNING = 0
    DRAINING = 1  # those that have begun go on, no other begins
    PAUSED = 2  # nothing is planned
    RESUMING = 3  # nobody pauses it; an engine elsewhere is still to be told so
    ENDING = 4  # as DRAINING, also once all have ended: a server elsewhere says when nothing is planned any more

    @property
    def drains(self) -> bool:
        """Do those that have begun go on, and no others?"""
        return self in (PauseState.DRAINING, PauseState.ENDING)

    @property
    def holds(self) -> bool:
        """Is something held up?"""
        return self.drains or self is PauseState.PAUSED


class PauseWord:
    """The word of the map at `offset` of the memory."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._header = memoryview(memory)[offset : offset + HEADER_BYTES].cast("q")  # by the supervisor, too: no numpy

    @property
    def state(self) -> PauseState:
        """As it was stored last."""
        return PauseState(self._header[PAUSE])

    @state.setter
    def state(self, state: PauseState) -> None:
        self._header[PAUSE] = state
