"""What this server knows of the engine elsewhere, where all look who know nothing of links: its worker's life, its
gauges, which blocks are cached there, and why it does not compute for this server.
"""

from __future__ import annotations

from actorserve.shm.engine_places import EngineTroubles
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.layout import HASH_BYTES

from ..protocol.sockets import engine_wire as wire
from ..protocol.wire import unpack
from ..runtime.process import Context
from .gauges import LinkGauges


class RemoteEngine:
    """One engine, as its steward has told of it last."""

    def __init__(self, context: Context, kv: KVMap, gauges: LinkGauges) -> None:
        system = context.system
        self._kv, self._gauges = kv, gauges
        self._troubles = EngineTroubles(context.segment.map, system.troubles_offset)
        self._place = context.spec.engine - system.remote_engines.start
        self._trouble: str | None = None  # as it was told last
        self.worker = 0  # which life of it computes for this server; 0: none

    def take(self, record: wire.Engine, trouble: str) -> None:
        """It computes, unless there is trouble."""
        self.tell_trouble(trouble)
        self.worker = 0 if trouble else record.worker
        self._gauges.tell(record.gauges)

    def lost(self, why: str) -> None:
        """Nothing is known of it any more."""
        self.tell_trouble(why)
        self.worker = 0
        self._gauges.forget()
        self._kv.begin(0, 0)

    def tell_trouble(self, why: str) -> None:
        """Why it does not compute for this server, to all who look."""
        if why != self._trouble:
            self._trouble = why
            self._troubles.write(self._place, why)

    def take_cached(self, record: wire.Cached) -> None:
        """By the numbers that blocks have there. ValueError if that cannot be."""
        blocks = min(record.blocks, self._kv.blocks)
        if not self._kv.describes(1, blocks):
            self._kv.begin(1, blocks)
        gone, new = unpack(record.gone).tolist(), unpack(record.new).tolist()
        if len(record.keys) != HASH_BYTES * len(new):
            raise ValueError(f"{len(record.keys)} bytes of the keys of {len(new)} blocks")
        for block in gone:
            if 0 <= block < blocks:
                self._kv.uncache(block)
        for index, block in enumerate(new):
            if 0 <= block < blocks:
                self._kv.uncache(block)
                self._kv.cache(block, record.keys[index * HASH_BYTES : (index + 1) * HASH_BYTES])
