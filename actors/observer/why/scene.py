"""What a request is looked at in: all of the server at one moment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from actorserve.shm.table.stamps import Stamp

from ...protocol.topology import System
from ...telemetry.snapshot import ActorStatus, Snapshot
from ..requests import Facts

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Scene:
    """The server at one moment."""

    system: System
    snapshot: Snapshot
    everything: list[Facts]
    now_ns: int

    def kind(self, kind: str, engine: int | None = None) -> list[ActorStatus]:
        """All of a kind, or those of one engine."""
        specs = self.system.by_name
        found = [actor for actor in self.snapshot.actors if actor.kind == kind]
        return found if engine is None else [actor for actor in found if specs[actor.name].engine == engine]

    def of_model(self, kind: str, facts: Facts) -> list[ActorStatus]:
        """Those of a kind that are there for the model which is asked."""
        specs = self.system.by_name
        return [actor for actor in self.kind(kind) if specs[actor.name].model == facts.model]

    def scheduler(self, facts: Facts) -> ActorStatus:
        """Whose the request is."""
        return self.snapshot.actor(self.system.scheduler_of(facts.engine))

    def is_elsewhere(self, facts: Facts) -> bool:
        """Is its engine on another machine? Who has which row, blocks and place there is not known here."""
        return facts.engine in self.system.remote_engines

    def address(self, facts: Facts) -> str:
        """That of its engine, which is elsewhere."""
        return self.system.config.remote_engines[facts.engine - self.system.remote_engines.start]

    def has_row(self, facts: Facts) -> bool:
        """Is it computed? Of an engine elsewhere that is said behind the first step."""
        return Stamp.SCHEDULED in facts.life.at if self.is_elsewhere(facts) else bool(facts.held)

    def is_as_launched(self, facts: Facts) -> bool:
        """Has its scheduler the options of the launch? A later life may have been given others, which stand nowhere."""
        return self.scheduler(facts).restarts == 0

    def waiting(self, engine: int) -> list[Facts]:
        """Admitted there and without a row, the next one first, by the options of the launch."""
        own = (facts for facts in self.everything if facts.engine == engine)
        found = [facts for facts in own if facts.life.at.get(Stamp.ADMITTED) and _is_waiting(facts)]
        by_priority = self.system.config.scheduling_policy == "priority"
        return sorted(found, key=lambda f: (f.params.priority if by_priority else 0, f.life.at[Stamp.ADMITTED]))

    def place(self, facts: Facts) -> tuple[int | None, int]:
        """(its place among those, if it is one of them and that is known, how many they are)."""
        queue = [] if self.is_elsewhere(facts) else self.waiting(facts.engine)
        if not self.is_as_launched(facts) and len({other.params.priority for other in queue}) > 1:
            return None, len(queue)
        return next((at for at, other in enumerate(queue, 1) if other.ref == facts.ref), None), len(queue)


def _is_waiting(facts: Facts) -> bool:
    return not facts.finish and not facts.held and facts.prompt is not None


def take_scene(system: System, snapshot: Snapshot, everything: list[Facts]) -> Scene:
    """Of what has just been read."""
    return Scene(system, snapshot, everything, time.monotonic_ns())
