"""Whose a slot is, as the engine word says, for all who stand for an engine: what comes for another's goes on there.

What the word means, and in which order it is stored, says scheduler/recovery/handover.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..protocol.messages import Message
from ..runtime.process import Context

MOST_REFS = 512  # of one message


class Ownership:
    """One engine's view."""

    def __init__(self, context: Context) -> None:
        self._context, self._table, self._engine = context, context.table, context.spec.engine
        self._peers = context.served.engines  # of the same model: slots of others are none of its business

    def own(self, refs: Iterable[int], make: Callable[[list[int]], Message]) -> list[int]:
        """Those of this engine; the others' go on to their owners."""
        table, mine = self._table, []
        others: dict[int, list[int]] = {}
        for ref in refs:
            engine = table.engine(ref)
            if engine == self._engine:
                mine.append(ref)
            elif engine is not None and engine in self._peers and not table.finish(ref):
                others.setdefault(engine, []).append(ref)
        self.post(others, make)
        return mine

    def post(self, refs: Mapping[int, list[int]], make: Callable[[list[int]], Message]) -> None:
        """To the schedulers of these engines."""
        for engine, some in refs.items():
            for start in range(0, len(some), MOST_REFS):
                self._context.post(self._context.system.schedulers[engine], make(some[start : start + MOST_REFS]))
