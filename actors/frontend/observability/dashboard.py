"""What the page is told: the snapshot and the KV map, both read from shared memory, in the form that http knows."""

from __future__ import annotations

import os
from functools import cache

from actorserve.http.dashboard.figures import PageActor, PageEngine, PageFigures, PageLane
from actorserve.shm.kv_map.view import KVView

from ...protocol.kinds import TEMPLATE
from ...runtime.process import Context
from ...telemetry.adapters import adapters_words, registry_of
from ...telemetry.snapshot import ActorStatus, SnapshotReader

CELLS = 1024  # of the picture of KV memory
MOST_IN_A_BYTE = 255


class DashboardFigures:
    """Looks when it is asked; between looks it costs nothing."""

    def __init__(self, context: Context) -> None:
        system = context.system
        self._adapters = registry_of(system, context.segment)
        self._snapshots = SnapshotReader(system, context.segment, os.getppid())
        sizes = system.kv_map_sizes[:3]
        self._maps = [KVView(context.segment, offset, *sizes) for offset in system.kv_map_offsets]

    def figures(self) -> PageFigures:
        """The server as it is now."""
        seen = self._snapshots.look()
        lanes = [PageLane(lane.source, lane.target, lane.sent_records, lane.waiting_records) for lane in seen.lanes]
        held, cached = (b"".join(parts) for parts in zip(*(one.look() for one in self._maps), strict=True))
        gauges = seen.sums("scheduler")
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
        actors = [_actor(actor) for actor in seen.actors if actor.kind != TEMPLATE]
        adapters = "" if self._adapters is None else adapters_words(self._adapters.all())
        return PageFigures(seen.at_s, actors, lanes, engine, adapters)


def cells(flags: bytes) -> str:
    """A hex digit for each cell: the share of its blocks whose flag is not 0. What is there at all is seen, too.

    Each byte of a large number counts one cell, so that cells are counted all at once: twice a second a frontend has no
    time for a loop over all blocks.
    """
    size = -(-len(flags) // CELLS) or 1
    if size > MOST_IN_A_BYTE:
        parts = (flags[at : at + size] for at in range(0, len(flags), size))
        return "".join(_digit(len(part) - part.count(0), len(part)) for part in parts)
    whole = len(flags) // size
    ones, rest = flags[: whole * size].translate(_ALL_OR_NOTHING), flags[whole * size :]
    total = sum(int.from_bytes(ones[at::size], "big") for at in range(size))
    shown = total.to_bytes(whole, "big").translate(_digits(size)).decode()
    return shown + _digit(len(rest) - rest.count(0), len(rest)) if rest else shown


def _digit(count: int, size: int) -> str:
    return f"{-(-15 * count // size):x}"


@cache
def _digits(size: int) -> bytes:
    """The digits of all counts, as a table for translate()."""
    return "".join(_digit(min(count, size), size) for count in range(256)).encode()


_ALL_OR_NOTHING = b"\0" + b"\1" * 255


def _actor(seen: ActorStatus) -> PageActor:
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
