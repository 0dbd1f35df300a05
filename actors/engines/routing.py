"""Which engine computes a prompt: the one that costs least, in tokens that it has to compute for it, itself and beside
others. Whose prefix cache holds how much of the prompt stands in the KV maps, which are memory of all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.topology import System
from ..runtime.process import Context
from .loads import EngineLoads, Load

EACH_SEQUENCE = 16  # tokens that one in an engine costs those beside it; more would outweigh what is cached
DOWN = 1 << 30  # what it costs to wait for an engine to be there again


class Router:
    """One actor's view of all engines: it counts what it has sent itself until that is seen on the board."""

    def __init__(self, context: Context) -> None:
        system: System = context.system
        self._loads = EngineLoads(context.board, system)
        count = len(system.engines)
        self._seen = [Load(0, 0)] * count
        self._sent = [0] * count  # since the load was another
        self._total = [0] * count

    def up(self, but: int | None = None) -> list[int]:
        """The engines that can compute now, but one."""
        return [engine for engine in self._loads.engines if engine != but and self._loads.is_up(engine)]

    def choose(self, hashes: bytes, tokens: int, sequences: int = 1, among: Sequence[int] = ()) -> int:
        """The engine for a prompt of so many tokens and these blocks, of so many sequences; there is always one."""
        engines = among or self._loads.engines
        if len(engines) == 1:
            return engines[0]
        best = min(engines, key=lambda engine: (self._cost(engine), self._total[engine]))
        self._sent[best] += sequences
        self._total[best] += sequences
        return best

    def _cost(self, engine: int) -> int:
        """Of what is beside it there."""
        load = self._loads.load(engine)
        if load != self._seen[engine]:
            self._seen[engine], self._sent[engine] = load, 0
        cost = EACH_SEQUENCE * (load.running + load.waiting + self._sent[engine])
        return cost if self._loads.is_up(engine) else cost + DOWN
