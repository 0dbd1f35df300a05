"""A scheduler's adapters, with a worker and frontends that the test plays."""

from __future__ import annotations

from itertools import count

from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.adapters import AdapterRead, LoadAdapter
from actorserve.actors.scheduler.batch import RunningBatch
from actorserve.actors.scheduler.lora.adapters import Adapters
from actorserve.actors.scheduler.lora.worker_memory import AdapterLimits
from actorserve.actors.scheduler.sequence import Sequence
from actorserve.actors.scheduler.waiting import WaitingQueue
from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState, registry_bytes
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes

WORKER = 7  # its incarnation


class Scene:
    """The scheduler's adapters, whose life can be ended; this test is the worker and the frontends."""

    def __init__(self, workers: int = 1, first: Scene | None = None) -> None:
        """`first`: the scene of the first engine, beside which this is the second one's."""
        at = -(-registry_bytes(2) // 4096) * 4096
        self.segment: Segment = first.segment if first else Segment.create(at + table_bytes(8, 64, 8), "test")
        self.table: RequestTable = first.table if first else RequestTable.create(self.segment, at, 8, 64, 8)
        self.registry = AdapterRegistryWriter(self.segment, 0, 2, int(first is not None))
        self.limits = AdapterLimits(in_batch=2, in_memory=3, workers=workers)
        self.waiting, self.batch = WaitingQueue(False), RunningBatch(8)
        self._arrivals = count(1)
        self.sequences: dict[int, Sequence] = {}
        self.begin()

    def begin(self, *there: int) -> None:
        """A life of the scheduler, which meets a worker that has these in memory."""
        self.adapters = Adapters(self.registry, self.limits, self.table, [("given", "/given")])
        self.adapters.batch = self.batch
        self.adapters.meet_worker(WORKER, there)

    def told(self) -> list[object]:
        found: list[object] = list(self.adapters.outbox)
        self.adapters.outbox.clear()
        self.adapters.published()
        return found

    def id_of(self, name: str) -> int:
        return max(one.id for one in self.registry.all() if one.name == name)

    def state(self, name: str) -> set[AdapterState]:
        return {one.state for one in self.registry.all() if one.name == name}

    def load(self, name: str, path: str = "/p", in_place: bool = False) -> None:
        self.adapters.load(LoadAdapter(1 << 32, name, path, in_place))

    def read(self, adapter: int, problem: str = "", rank: int = 0) -> None:
        self.adapters.has_read(AdapterRead(WORKER, rank, adapter, problem))

    def ready(self, name: str) -> int:
        """It was loaded."""
        self.load(name)
        adapter = self.id_of(name)
        self.read(adapter)
        self.told()
        return adapter

    def wait(self, adapter: int) -> Sequence:
        """A sequence that wants to start."""
        slot = next(self._arrivals)
        sequence = Sequence(1 << 32 | slot, slot, Generation(Sampling(0), adapter=adapter), [0])
        self.waiting.add(sequence)
        self.sequences[sequence.ref] = sequence
        return sequence

    def start(self) -> Sequence | None:
        """The next one, if there is one that may."""
        sequence = self.adapters.first(self.waiting)
        if sequence is not None:
            self.waiting.remove(sequence.ref)
            self.batch.place(sequence, 0, 8, 0)
        return sequence

    def end(self, sequence: Sequence) -> None:
        self.batch.remove(sequence)
        del self.sequences[sequence.ref]

    def turn(self) -> list[object]:
        self.adapters.turn(self.sequences)
        return self.told()
