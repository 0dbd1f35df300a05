"""What the page is told: the overview and the KV map, both read from shared memory, in the form that http knows."""

from __future__ import annotations

import os

from actorserve.http.page_figures import PageActor, PageEngine, PageFigures, PageLane
from actorserve.shm.kv_view import KVView

from ..overview import ActorSight, Lookout
from ..runtime import Context

CELLS = 1024  # of the picture of KV memory


class Sight:
    """Looks when it is asked; between looks it costs nothing."""

    def __init__(self, context: Context) -> None:
        system = context.system
        self._lookout = Lookout(system, context.segment, os.getppid())
        self._blocks = KVView(
            context.segment, system.kv_map_offset, system.slots, system.sequence_blocks, system.max_blocks
        )

    def figures(self) -> PageFigures:
        """The server as it is now."""
        seen = self._lookout.look()
        lanes = [PageLane(lane.source, lane.target, lane.sent_records, lane.waiting_records) for lane in seen.lanes]
        held, cached = self._blocks.look()
        gauges = seen.actor("scheduler").gauges
        engine = PageEngine(
            running=gauges["running"],
            waiting=gauges["waiting"],
            blocks_total=gauges["blocks_total"],
            blocks_free=gauges["blocks_free"],
            generated=gauges["generated"],
            prompted=gauges["prompted"],
            prefix_queries=gauges["prefix_queries"],
            prefix_hits=gauges["prefix_hits"],
            used=cells(held),
            cached=cells(cached),
        )
        return PageFigures(seen.at_s, [_actor(actor) for actor in seen.actors], lanes, engine)


def cells(flags: bytes) -> str:
    """A hex digit for each cell: the share of its blocks whose flag is 1. What is there at all is seen, too."""
    size = -(-len(flags) // CELLS) or 1
    if size == 1:
        return flags.translate(_ALL_OR_NOTHING).decode()
    parts = (flags[at : at + size] for at in range(0, len(flags), size))
    return "".join(f"{-(-15 * sum(part) // len(part)):x}" for part in parts)


_ALL_OR_NOTHING = b"0" + b"f" * 255


def _actor(seen: ActorSight) -> PageActor:
    return PageActor(
        name=seen.name,
        kind=seen.kind,
        state=seen.state,
        pid=seen.pid,
        restarts=seen.restarts,
        up_s=seen.up_s,
        heartbeat_s=seen.heartbeat_s,
        waiting=seen.waiting_records,
        received=seen.received_records,
    )
