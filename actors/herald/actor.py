"""The herald: it tells routers and indexers outside which blocks each engine has cached (--kv-events-config).

It looks at the KV maps, and gets no messages; nobody waits for it, and it writes nothing but the number of the next
batch (shm/kv_map/notes.py), before that is sent. One that has died has a successor that goes on with these numbers, and
says everything anew: that there is no block, then all that there are. The same is said where somebody asks for batches
that are not kept any more. A batch that was numbered and not sent is a gap in the numbers, as one that was dropped is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from actorserve.shm.adapters.registry import AdapterRegistry
from actorserve.shm.kv_map.notes import BlockNotes
from actorserve.shm.kv_map.reader import CachedBlocks

from ..options.config import Config, ConfigError
from ..options.objects.kv_events import OPTION, read_events
from ..runtime.process import Actor, Context, run
from ..telemetry.gauges import HERALD_KEPT
from ..telemetry.gauges import HeraldGauge as Gauge
from .changes import BlockChanges
from .events import Cleared, Event, Removed, Stored, encode

if TYPE_CHECKING:
    from .publisher import Publisher

LOOK_S = 0.02  # between two looks at the KV maps and for requests
AGAIN_S = 1.0  # between two tries to have an address
MOST_EVENTS = 64  # of one batch


def import_late(config: Config) -> None:
    """What is imported only as it runs."""
    import zmq

    zmq.zmq_version()


class HeraldActor(Actor):
    """The one of a server."""

    wait_s = LOOK_S

    def __init__(self, context: Context) -> None:
        self.context = context
        self.settings = read_events(context.config)
        self.engines = [EngineHerald(self, engine) for engine in context.system.local_engines]
        self.counts = dict.fromkeys(Gauge, 0)
        before = context.board.gauges(context.spec.position)
        self._base = {gauge: before[gauge] if gauge in HERALD_KEPT else 0 for gauge in Gauge}
        for engine in self.engines:
            engine.open(context.incarnation == 1)

    def do_work(self) -> int:
        """Tell what has changed, and who asks."""
        done = sum(engine.turn() for engine in self.engines)
        self.counts[Gauge.BLOCKS] = sum(engine.changes.blocks for engine in self.engines)
        for gauge, count in self.counts.items():
            self.context.status.set_gauge(gauge, self._base[gauge] + count)
        return done


class EngineHerald:
    """What is told of one engine."""

    def __init__(self, herald: HeraldActor, engine: int) -> None:
        self._herald, context = herald, herald.context
        system = context.system
        sizes = system.files.kv_notes
        assert sizes is not None, "there is no herald without notes"
        self._rank = context.config.first_engine + engine
        self._notes = BlockNotes(context.files["kv_notes"], sizes, engine)
        cached = CachedBlocks(context.segment, system.kv_map_offsets[engine], system.kv_map_sizes)
        offset = system.adapters_offset
        self._registry = None if offset is None else AdapterRegistry(context.segment, offset)
        self.changes = BlockChanges(cached, self._notes, sizes.block_size, self._adapter)
        self._publisher: Publisher | None = None
        self._try_at = 0.0

    def _adapter(self, number: int) -> str | None:
        found = None if self._registry is None else self._registry.by_id(number)
        return None if found is None else found.name

    def open(self, is_first: bool) -> None:
        """Have its addresses. A first life that cannot ends the start; a later one tries again."""
        from .publisher import Publisher  # ZeroMQ with it, which is not everywhere

        try:
            self._publisher = Publisher(self._herald.settings, self._rank)
            self._herald.context.log.info("KV events of engine %d: %s", self._rank, self._publisher.addresses)
        except OSError as error:
            if is_first:
                raise ConfigError(f"{OPTION}: endpoint or replay_endpoint of engine {self._rank}: {error}") from None
            self._herald.context.log.warning("KV events of engine %d wait for their address: %s", self._rank, error)
            self._try_at = time.monotonic() + AGAIN_S

    def turn(self) -> int:
        """Returns how many events were told."""
        if self._publisher is None:
            if time.monotonic() >= self._try_at:
                self.open(False)
            return 0
        requests = self._publisher.requests()
        told = self._tell(self._publisher)
        for who, start in requests:
            self._herald.counts[Gauge.REPLAYS] += 1
            if start < self._notes.next_batch and not self._publisher.has(start):
                self.changes.say_all()
                told += self._tell(self._publisher)
            self._publisher.answer(who, start)
        return told + len(requests)

    def _tell(self, publisher: Publisher) -> int:
        events = self.changes.events()
        for start in range(0, len(events), MOST_EVENTS):
            some = events[start : start + MOST_EVENTS]
            number = self._notes.next_batch
            self._notes.next_batch = number + 1
            as_maps = self._herald.settings.event_format == "map"
            publisher.send(number, encode(time.time(), some, self._rank, as_maps))
            self._herald.counts[Gauge.BATCHES] += 1
        for event in events:
            self._count(event)
        return len(events)

    def _count(self, event: Event) -> None:
        counts = self._herald.counts
        match event:
            case Stored():
                counts[Gauge.STORED] += len(event.block_hashes)
            case Removed():
                counts[Gauge.REMOVED] += len(event.block_hashes)
            case Cleared():
                counts[Gauge.CLEARED] += 1


def main(context: Context) -> None:
    """Run the herald until it is told to stop."""
    run(HeraldActor(context), context)
