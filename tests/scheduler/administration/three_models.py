"""Three models of a server, of which one is loaded at a time: their schedulers, and the words of all."""

from __future__ import annotations

from typing import Any

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.protocol.messages import Cancel, Message
from actorserve.actors.protocol.topics.administration import (
    Parked,
)
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepState
from tests.scheduler.recovery.two_engines import Engine, Servers

ASLEEP, DRAINS = UNTIL_ASKED._replace(asleep=Part.ALL), UNTIL_ASKED._replace(draining=True)
WAKES, AWAKE = SleepState(idle=True), SleepState()


class Models(Servers):
    """Three, of which one is loaded at a time: the first."""

    def __init__(self, meets: bool = True, **more: Any) -> None:
        given = {"max_num_seqs": 4, "max_model_len": 256, "max_num_queued_reqs": 8, "models_max": 1, **more}
        config = make_config({**given, "also": ["org/second", "org/third"], "debug": True})
        self.blocks = 64
        info = resolve_model(config)
        self.system = System(config, info, [info, info])
        self.memory = Memory(self.system)
        workers = [self.system.group_of(KINDS["worker"], engine) for engine in self.system.engines]
        self.lanes = {name: [] for name in (*self.system.schedulers, *workers, "frontend-0")}
        self.engines = [Engine(self, number) for number in self.system.engines]
        if meets:
            self.engines[0].meet()
        for engine in self.engines[1:]:
            engine.turn(Parked(0, 1))
        self.table = self.engines[0].context.table
        self._next = 0

    def told(self, engine: int, kind: type[Message]) -> list[Any]:
        """What of this kind an engine's workers were sent."""
        lane = self.lanes[self.system.group_of(KINDS["worker"], engine)]
        return [message for message in lane if isinstance(message, kind)]

    def states(self) -> list[SleepState]:
        return [engine.actor.scheduler.sleep.state for engine in self.engines]


def cancel(models: Models, engine: Engine, ref: int) -> None:
    models.table.cancel(ref)
    engine.turn(Cancel([ref]))
