"""Which engine computes a prompt: the one that costs least, in tokens that it has to compute for it, itself and beside
others. Whose prefix cache holds how much of the prompt stands in the KV maps, which are memory of all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from actorserve.shm.kv_map.index import CachedPrefixes
from actorserve.shm.kv_map.pause import PauseState, PauseWord
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.layout import HASH_BYTES

from ..runtime.process import Context
from .loads import EngineLoads, Load

EACH_RUNNING = 16  # tokens that a sequence in an engine costs those beside it; more would outweigh what is cached
EACH_WAITING = 64
DOWN = 1 << 30  # what it costs to wait for an engine to be there again
PARKED = 1 << 40  # of which nobody says when that will be
SENT_S = 3.0  # for so long a prompt counts as cached where it was sent, though nobody has computed it yet
MOST_SENT = 1 << 14  # blocks


class EngineRouter:
    """One actor's view of its model's engines: it counts what it has sent itself until that is seen on the board."""

    def __init__(self, context: Context) -> None:
        system, config = context.system, context.config
        self._loads = EngineLoads(context.board, system, context.spec.model)
        self._prefill = range(config.prefill_engines)
        self._block_size = config.block_size
        places = system.kv_map_offsets if config.enable_prefix_caching else []
        self._maps = [CachedPrefixes(context.segment, offset, system.kv_map_sizes) for offset in places]
        memory, offsets = context.segment.map, system.kv_map_offsets
        self._words = [(PauseWord(memory, offset), SleepWord(memory, offset)) for offset in offsets]
        self._recent: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # engine and end, by block
        count = len(system.engines)
        self._seen = [Load(0, 0, 0)] * count
        self._sent = [0] * count  # since the load was another
        self._chosen, self._last = 0, [0] * count  # choices, and at which of them each engine was chosen last

    def up(self, but: int | None = None) -> list[int]:
        """The engines that can compute now, but one."""
        return [engine for engine in self._loads.engines if engine != but and self._loads.is_up(engine)]

    def holds(self, engine: int) -> bool:
        """Does it compute nothing, whatever it has: is it paused, or asleep?"""
        pause, sleep = self._words[engine]
        return pause.state is PauseState.PAUSED or bool(sleep.state.asleep)

    def able(self, but: int) -> list[int]:
        """The engines that can compute now, and will, but one."""
        return [engine for engine in self.up(but) if not self.holds(engine)]

    def is_parked(self, engine: int) -> bool:
        """Is it not wanted now?"""
        return self._loads.is_parked(engine)

    def leave_before(self, engine: int) -> bool:
        """Does one with a lower number give away what it has, too, to the same others?"""
        return any(other < engine and self._loads.is_leaving(other) for other in self._loads.engines)

    def rooms(self, rows: int, but: int) -> dict[int, int]:
        """Engines beside that one where nobody waits, and how many more of so many rows could be taken there."""
        loads = {engine: self._seen_load(engine) for engine in self.up(but)}
        free = {engine: rows - load.running - self._sent[engine] for engine, load in loads.items() if not load.waiting}
        return {engine: count for engine, count in free.items() if count > 0}

    def choose(self, hashes: bytes, tokens: int, sequences: int = 1, among: Sequence[int] = ()) -> int:
        """The engine for a prompt of so many tokens and these blocks, of so many sequences; there is always one.

        At the same cost it is the one that was not chosen for longest, so that all caches are filled.
        """
        engines = among or self._for_prompts()
        keys = self._keys(hashes)
        costs = {engine: tokens - self._cached(keys, engine) + self._beside(engine) for engine in engines}
        best = min(engines, key=lambda engine: (costs[engine], self._last[engine]))
        self._sent[best] += sequences
        self._chosen += 1
        self._last[best] = self._chosen
        self._remember(keys, best)
        return best

    def cached(self, hashes: bytes, engines: Iterable[int]) -> int:
        """Tokens of the longest prefix of these blocks that one of the engines has."""
        keys = self._keys(hashes)
        return max((self._cached(keys, engine) for engine in engines), default=0)

    def _keys(self, hashes: bytes) -> list[bytes]:
        return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)] if self._maps else []

    def _for_prompts(self) -> Sequence[int]:
        """With --prefill-engines those of them that are up; all, where none is."""
        return [engine for engine in self._prefill if self._loads.is_up(engine)] or self._loads.engines

    def _cached(self, keys: list[bytes], engine: int) -> int:
        """Tokens of the longest prefix that is there. Its blocks are let go of from the end, so a half of what may be
        is looked at each time, and not every block.
        """
        if not keys or not self._has(keys[0], engine):
            return 0
        low, high = 1, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has(keys[middle - 1], engine) else (low, middle - 1)
        return low * self._block_size

    def _has(self, key: bytes, engine: int) -> bool:
        sent = self._recent.get(key)
        return (sent is not None and sent[0] == engine and sent[1] > time.monotonic()) or key in self._maps[engine]

    def _remember(self, keys: list[bytes], engine: int) -> None:
        end = time.monotonic() + SENT_S
        for key in keys:
            self._recent[key] = engine, end
            self._recent.move_to_end(key)
        while len(self._recent) > MOST_SENT:
            self._recent.popitem(last=False)

    def _seen_load(self, engine: int) -> Load:
        load = self._loads.load(engine)
        if load != self._seen[engine]:
            self._seen[engine], self._sent[engine] = load, 0
        return load

    def _beside(self, engine: int) -> int:
        """What all that is there costs."""
        load = self._seen_load(engine)
        cost = EACH_RUNNING * (load.running + self._sent[engine]) + EACH_WAITING * load.waiting
        if self._loads.is_up(engine):
            return cost
        return cost + (PARKED if self._loads.is_parked(engine) else DOWN)
