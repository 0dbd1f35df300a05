"""Whether an engine plans steps: one word, with the KV map, so that a successor of its scheduler holds, too.

The scheduler alone writes it. Anyone may read it.
"""

from __future__ import annotations

import mmap
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .layout import HEADER_WORDS, PAUSE


class PauseState(IntEnum):
    """What an engine does with its requests."""

    RUNNING = 0
    DRAINING = 1  # those that have begun go on, no other begins
    PAUSED = 2  # nothing is planned


class PauseWord:
    """The word of the map at `offset` of the memory."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        header: NDArray[np.int64] = np.ndarray(HEADER_WORDS, np.int64, memory, offset)
        self._word = header[PAUSE : PAUSE + 1]

    @property
    def state(self) -> PauseState:
        """As it was stored last."""
        return PauseState(int(self._word[0]))

    @state.setter
    def state(self, state: PauseState) -> None:
        self._word[0] = state
