"""Whether actors are profiled: two words, with the KV map of the first engine.

Its scheduler alone writes them: when it began, which is also the profile's number, before the time at which it ends by
itself. All actors look at them in each turn. An end of 0 is none that runs, or one that was stopped.
"""

from __future__ import annotations

from typing import NamedTuple

from ..layout import WORD_BYTES
from .layout import PROFILE, PROFILE_END


class ProfileState(NamedTuple):
    """Both words: CLOCK_MONOTONIC, ns."""

    began: int = 0
    ends: int = 0


class ProfileWords:
    """Those of the map at `offset` of a segment's words; one thread more than an actor's own may read them."""

    def __init__(self, words: memoryview, offset: int) -> None:
        self._words = words
        self._began, self._ends = (offset // WORD_BYTES + word for word in (PROFILE, PROFILE_END))

    @property
    def ends(self) -> int:
        """When it ends by itself; other numbers are other profiles."""
        return int(self._words[self._ends])

    @property
    def state(self) -> ProfileState:
        """As it was stored last."""
        ends = self.ends
        return ProfileState(int(self._words[self._began]), ends)

    @state.setter
    def state(self, state: ProfileState) -> None:
        self._words[self._began] = state.began
        self._words[self._ends] = state.ends
