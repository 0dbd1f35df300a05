"""Which adapters there are, which of them the worker has in memory, and which sequences may start with theirs.

Writes the registry (shm/adapters/registry.py says what a death between its stores leaves). A load is told to whoever
waits when the worker has read it: messages about a name go to all frontends, so that a successor need not know who
asked. An unload is told at once: no new request can name the adapter. It is over when no sequence has it, admitted or
still being rendered.

A sequence starts when the worker has its adapter in memory, and only so many different ones run at once
(--max-loras). Behind one that waits for such a place none with an adapter starts, or it could wait for ever; behind one
whose adapter is being read, others do. Of those in memory (--max-cpu-loras) the one that was used least lately gives
way. What the worker has is the worker's to say (WorkerReady, AdapterRead): a successor of either begins from that.
A row whose KV a worker's successor has found goes on in it when its adapter has been read there again: ids are those of
loads, so that it is the same one.
Every plan that has a row with an adapter stands behind the worker's word in time, and every DropAdapter behind all such
plans in the lane.

Of several engines the first one's scheduler writes the registry, and its worker is who tries a new adapter; loads and
unloads are asked of it. Those of the others read it: their workers read an adapter when a sequence wants it there, and
drop it when nothing names it any more. An unload is over when no slot has the adapter, whosever it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping

import msgspec

from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState, RegisteredAdapter, too_long
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import RequestTable

from ...model.lora.adapter import stamp_of
from ...protocol.request import Generation
from ...protocol.topics.adapters import (
    AdapterChanged,
    AdapterRead,
    AdapterReplaced,
    DropAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from ..batch import RunningBatch
from ..sequence import Sequence
from ..waiting import WaitingQueue
from .replaced import HasAdapter, ReplacedLoads
from .worker_memory import AdapterLimits, AdapterMemory, ToOthers


class Adapters:
    """`outbox`: messages for the worker and for frontends, until they are taken; `lost`: adapters that the worker could
    not read any more, until whoever waits for them is ended.
    """

    def __init__(
        self,
        registry: AdapterRegistryWriter,
        limits: AdapterLimits,
        table: RequestTable,
        modules: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`modules`: names and paths of the command line."""
        self.registry, self.limits = registry, limits
        self.outbox: deque[ToOthers] = deque()
        self.lost: list[int] = []
        self.batch = RunningBatch(0)  # that of the epoch
        self._table, self._moments = table, Stamps(table)
        self._incarnation = 0  # of the worker
        self._memory = AdapterMemory(limits, self.outbox, self._running)
        self._replaced = ReplacedLoads(registry, table)
        self.replaces = True  # where files are others by now a new load takes the place of theirs
        self._over: list[int] = []  # ids whose end is told: their entries are free once that is in the lanes
        self._decode = msgspec.msgpack.Decoder(Generation).decode
        self._counted: dict[int, tuple[int, int]] = {}
        registry.forget_counts()
        registry.forget_refusals()
        if registry.keeps and not registry.seeded:
            self._seed(modules)
        if registry.keeps:
            self._recover()

    # --- the beginning of a life ---------------------------------------------------------------------------------

    def _seed(self, modules: Iterable[tuple[str, str]]) -> None:
        """Those of the command line; the worker has looked at them before it says that it is ready."""
        there = {one.name for one in self.registry.all()}
        for name, path in modules:
            if name not in there:
                self.registry.add(name, path, AdapterState.READY, stamp_of(path))
        self.registry.set_seeded()

    def _recover(self) -> None:
        """What a predecessor did last may not be told."""
        newest = {one.name: one.id for one in self.registry.all() if one.state is AdapterState.READY}
        for one in self.registry.all():
            if one.state is AdapterState.READY and newest[one.name] != one.id:
                self.registry.set_state(one.id, AdapterState.UNLOADING)
            elif one.state is AdapterState.READY:
                self._tell(one.name)

    def meet_worker(self, incarnation: int, there: Iterable[int]) -> None:
        """This life of the worker has these in memory, and is asked for what is being loaded."""
        if incarnation == self._incarnation:
            return
        self._incarnation = incarnation
        self._memory.meet(there)
        for one in self.registry.all():
            if one.state is AdapterState.LOADING and self.registry.keeps:
                self._memory.read(one)
        for adapter in self._memory.all():
            if self.registry.by_id(adapter) is None:
                self._memory.drop(adapter)

    # --- what is asked -------------------------------------------------------------------------------------------

    def load(self, message: LoadAdapter) -> None:
        """It may have been asked before."""
        name, path = message.name, message.path
        own = [one for one in self.registry.all() if one.name == name]
        loading = next((one for one in own if one.state is AdapterState.LOADING), None)
        ready = self.registry.find(name)
        if problem := too_long(name, path):
            self._answer(message, 400, problem)
        elif loading is not None and loading.path != path:
            self._answer(message, 400, f"{name} is being loaded from {loading.path}")
        elif loading is not None:  # whoever waits for the name will be told
            return
        elif ready is not None and not message.in_place and ready.path != path:
            text = f"{name} is loaded already, from {ready.path}; load_inplace puts another one in its place"
            self._answer(message, 400, text)
        elif ready is not None and not message.in_place:
            self._answer(message)
        else:
            self._begin(message)

    def _begin(self, message: LoadAdapter) -> None:
        adapter = self.registry.add(message.name, message.path)
        if adapter is None:
            self._answer(message, 400, "there are as many adapters as the server takes; unload one")
        elif self._incarnation:
            self._memory.read(RegisteredAdapter(adapter, message.name, message.path, AdapterState.LOADING))

    def unload(self, message: UnloadAdapter) -> None:
        """It may have been asked before."""
        ready = self.registry.find(message.name)
        if ready is not None:
            self.registry.set_state(ready.id, AdapterState.UNLOADING)
        states = {one.state for one in self.registry.all() if one.name == message.name}
        if AdapterState.UNLOADING in states:
            self._answer(message)
        else:
            self._answer(message, *((400, "it is being loaded") if states else (404, "it is not loaded")))

    def _answer(self, message: LoadAdapter | UnloadAdapter, status: int = 200, problem: str = "") -> None:
        self.outbox.append(AdapterChanged(message.call, message.name, status, problem))

    def _tell(self, name: str, status: int = 200, problem: str = "") -> None:
        self.outbox.append(AdapterChanged(0, name, status, problem))

    # --- what the worker says ------------------------------------------------------------------------------------

    def has_read(self, message: AdapterRead) -> None:
        """A member of the worker's group has an adapter in memory, or cannot."""
        if message.incarnation != self._incarnation:
            return
        if message.adapter not in self._memory:  # a predecessor asked for it, or what it is for has ended
            if not message.problem:
                self.outbox.append(DropAdapter(message.adapter))
            return
        one = self.registry.by_id(message.adapter)
        as_others = self._memory.is_as_others_read(message)
        if message.problem or not as_others:
            self._memory.drop(message.adapter)
            if one is not None and message.changed and one.state is not AdapterState.LOADING:
                self.replace(one.id)
            else:
                self._cannot(message.adapter, one, message.problem or "its files have changed while they were read")
            return
        if not self._memory.has_read(message):
            return
        if one is not None and self.registry.keeps and message.stamp:
            self.registry.set_stamp(one.id, message.stamp)
        if one is not None and one.state is AdapterState.LOADING:
            older = self.registry.find(one.name)
            self.registry.set_state(one.id, AdapterState.READY)
            if older is not None:
                self.registry.set_state(older.id, AdapterState.UNLOADING)
            self._tell(one.name)

    def cannot_read(self, problem: str) -> None:
        """There is no worker, and none will be: those that are being loaded are not."""
        for one in self.registry.all():
            if one.state is AdapterState.LOADING and one.id not in self._over:
                self._cannot(one.id, one, problem)
                self.registry.set_state(one.id, AdapterState.UNLOADING)  # it is wanted no more

    def _cannot(self, adapter: int, one: RegisteredAdapter | None, problem: str) -> None:
        if one is not None and one.state is AdapterState.LOADING:
            self._tell(one.name, 400, problem)
            self._over.append(adapter)
        else:
            self.lost.append(adapter)

    def replace(self, adapter: int) -> None:
        """Its files are others by now (replaced.py)."""
        one = self.registry.by_id(adapter)
        if one is not None and not self.replaces:
            self.registry.set_state(adapter, AdapterState.UNLOADING)
            self.lost.append(adapter)
            return
        if one is None or not self._replaced.add(one):
            return
        if self.registry.keeps:
            self._begin(LoadAdapter(0, one.name, one.path, True))
        else:
            self.outbox.append(AdapterReplaced(adapter))

    # --- who may start -------------------------------------------------------------------------------------------

    def knows(self, adapter: int) -> bool:
        """May a sequence be admitted that has this one?"""
        return not adapter or self.registry.by_id(adapter) is not None

    def _running(self) -> set[int]:
        return {one.adapter for one in self.batch.running() if one.adapter}

    def first(self, waiting: WaitingQueue, but: Container[int] = (), begun: bool = False) -> Sequence | None:
        """The first that may start now, but these refs; of those that have run before alone, if `begun`."""
        head = waiting.first_begun(but) if begun else waiting.first(but)
        if head is None or not head.adapter:
            return head
        running, blocked = self._running(), False
        for sequence in waiting.in_order():
            if sequence.ref in but or (begun and not sequence.has_run):
                continue
            if not sequence.adapter:
                return sequence
            if blocked or (sequence.adapter not in running and len(running) >= self.limits.in_batch):
                blocked = True
            elif self.is_there(sequence.adapter):
                return sequence
        return None

    def is_there(self, adapter: int) -> bool:
        """Has the worker this one in memory? If not it is asked for it, where there is room beside those that run."""
        if not adapter:
            return True
        if adapter in self._memory:
            return self._memory.use(adapter)
        one = self.registry.by_id(adapter)
        if one is not None and self._incarnation and adapter not in self._replaced:
            self._memory.read(one)
        return False

    def is_asked_for(self, adapter: int) -> bool:
        """Has the worker it, or is it being read there, or will another be?"""
        return adapter in self._memory or adapter in self._replaced

    # --- turns ---------------------------------------------------------------------------------------------------

    def turn(self, sequences: Mapping[int, HasAdapter]) -> None:
        """Count who has which adapter, and end the unloads that nothing holds any more."""
        self.lost += self._replaced.turn(sequences)
        held = Counter(one.adapter for one in sequences.values() if one.adapter)
        self._count(held, Counter(one.adapter for one in self.batch.running() if one.adapter))
        self._memory.make_room()  # loads that waited for none may have taken more
        if not self.registry.keeps:
            for adapter in [one for one in self._memory.all() if not held[one] and self.registry.by_id(one) is None]:
                self._memory.drop(adapter)
            return
        for one in self.registry.all():
            if one.state is AdapterState.UNLOADING and one.id not in self._over and not held[one.id]:
                if one.running or one.waiting or self._has_slot(one.id):
                    continue
                if one.id in self._memory:
                    self._memory.drop(one.id)
                self._over.append(one.id)

    def _count(self, held: Counter[int], running: Counter[int]) -> None:
        counts = {adapter: (running[adapter], total - running[adapter]) for adapter, total in held.items()}
        for adapter in self._counted.keys() - counts.keys():
            self.registry.count(adapter, 0, 0)
        for adapter, count in counts.items():
            if self._counted.get(adapter) != count:
                self.registry.count(adapter, *count)
        self._counted = counts

    def _has_slot(self, adapter: int) -> bool:
        """Has a sequence it that is not admitted yet, or that is in another engine?"""
        table = self._table
        for ref in table.current_refs(0, table.slots):
            if table.finish(ref) or table.is_cancelled(ref) or self._moments.get(ref, Stamp.END_TOLD):
                continue
            packed = table.params(ref)
            if packed and (table.load(ref) or self._decode(packed).adapter) == adapter:
                return True
        return False

    def published(self) -> None:
        """All that was told is in the lanes."""
        for adapter in self._over:
            self.registry.set_state(adapter, AdapterState.FREE)
        self._over.clear()
