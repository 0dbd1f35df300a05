"""What has begun in the engines of a model, while an operator waits for its end (scheduler/recovery/handover.py)."""

from __future__ import annotations

from actorserve.shm.kv_map.pause import PauseState, PauseWord
from actorserve.shm.kv_map.sleep import SleepWord

from ..runtime.process import Context
from .routing import EngineRouter


class Draining:
    """As one engine sees it."""

    def __init__(self, context: Context, router: EngineRouter) -> None:
        self._table, self._engine, self._router = context.table, context.spec.engine, router
        self._elsewhere = set(context.system.remote_engines)
        others = [one for one in context.served.engines if one != self._engine]  # slots of other models are not meant
        memory, offsets = context.segment.map, context.system.kv_map_offsets
        self._words = [(one, PauseWord(memory, offsets[one]), SleepWord(memory, offsets[one])) for one in others]

    def others_end(self) -> bool:
        """Has what has begun ended in the other engines, too, and in none is more to begin? What has tokens counts of
        this engine as well.
        """
        table, draining = self._table, {self._engine}
        for engine, pause, sleep in self._words:
            if self._router.holds(engine) or sleep.state.wakes:  # it has no worker yet
                continue
            if engine in self._elsewhere:
                if pause.state is PauseState.DRAINING:  # nobody here sees what has begun there without a token
                    return False
            elif not (pause.state.drains or sleep.state.draining):
                return False
            draining.add(engine)
        refs = table.current_refs(0, table.slots) if self._words else []
        return not any(table.generated(ref) and not table.finish(ref) and table.engine(ref) in draining for ref in refs)
