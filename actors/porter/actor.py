"""The porter: it keeps KV blocks beside the workers' memory (--kv-offload), and does all reading and writing for that.

What workers have computed it finds by itself: it looks through the KV maps for blocks that have been cached since the
last time, and copies them into its arena (shm/kv_tier/arena.py) and from there into the folder. So nobody waits for
it, no message is lost with it, and what it has not come to when a block is given away is not kept.

A scheduler that wants blocks asks by Fetch, and is told which slots of the arena the first of them are in; a worker
copies them from there. The porter writes to no KV memory: whenever it dies, or stands still over a slow disk, there is
nothing half written that anybody uses. Its threads (folder.py) touch files alone. The arena is left to its successor.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from actorserve.shm.rings.mailbox import wake

from ..model.cached import cache_folder
from ..options.kv_offload import KVTiers, read_tiers
from ..protocol.block_hash import HASH_BYTES
from ..protocol.topics.tiers import Fetch, Fetched, ForgetTiers, ToPorter
from ..protocol.wire import pack
from ..runtime.process import IDLE_S, Actor, Context, run
from ..telemetry.gauges import PORTER_KEPT
from ..telemetry.gauges import PorterGauge as Gauge
from .carrier import Carrier, Kind, Store
from .fetching import Fetching
from .fingerprint import Identities, make_fingerprint
from .folder import FolderTier
from .host import HostTier
from .memory import EngineMemory
from .saving import Saving

if TYPE_CHECKING:
    from .peers.pulling import Peers
    from .peers.serving import Serving
    from .plugin import PluginTier

BUSY_S, QUIET_S = 0.02, 0.2  # between two looks at the KV maps, where something has changed, and where not
TURN_BYTES = 8 << 20  # that are copied in one turn, so that who asks is answered soon


class PorterActor(Actor):
    """The one of a server."""

    def __init__(self, context: Context) -> None:
        self.context = context
        arena, tiers = context.kv_tier(), read_tiers(context.config)
        assert arena is not None and tiers is not None, "there is no porter without --kv-offload"
        self.host = HostTier(arena)
        self.folder: FolderTier | None = None
        self._eventfd = context.eventfds[context.name]
        if tiers.folder is not None:
            self.folder = FolderTier(Path(tiers.folder), tiers.folder_bytes, self._wake, context.log)
        self.engines = [EngineMemory(context, engine) for engine in context.system.local_engines]
        self.kind: Kind | None = None  # what is kept now; None: it is not known, or not ready
        self._too_large: Kind | None = None  # of which no block fits
        self._carry(tiers)
        kept = None if self.folder is None else self.folder.root
        if kept is None and tiers.shares:
            kept = cache_folder()
        self._identities = Identities(kept, self._wake, context.log)
        self._fingerprints: list[Kind | None] = [None] * len(self.engines)
        self._changed: deque[tuple[int, int]] = deque()  # (engine, block) that may have to be copied
        self._look_at = 0.0
        before = context.board.gauges(context.spec.position)
        self._base = {gauge: before[gauge] if gauge in PORTER_KEPT else 0 for gauge in Gauge}
        self._counted = dict.fromkeys(Gauge, 0)
        self._identities.look(context.model.folder)  # large files take a while

    def _carry(self, tiers: KVTiers) -> None:
        """What carries blocks beside the arena; only what is asked for is imported."""
        context, stores = self.context, list[Store]()
        if self.folder is not None:
            stores.append(self.folder)
        self.plugin: PluginTier | None = None
        if tiers.plugin:
            from .plugin import PluginTier

            self.plugin = PluginTier(tiers.plugin, self._wake, context.log)
            stores.append(self.plugin)
        self.peers: Peers | None = None
        self.serving: Serving | None = None
        if tiers.listen or tiers.pulls:
            from .peers.make import make_peers

            self.peers, self.serving = make_peers(context, tiers, self.host, self._wake)
        self._stores = stores
        self.saving = Saving(self.host, stores)
        self.fetching = Fetching(self.host, self._answer, self._count)

    def _wake(self) -> None:
        """Of its own loop, by a thread."""
        wake(self._eventfd)

    # --- what is kept --------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Find out what the engines' blocks mean; what means something else than the first one's is left alone."""
        for engine, memory in enumerate(self.engines):
            if memory.look() or (memory.parts and self._fingerprints[engine] is None):
                self._fingerprints[engine] = self._kind_of(memory)
        kind = next((kind for kind in self._fingerprints if kind is not None), None)
        if kind is None or kind in (self.kind, self._too_large):
            return
        self.kind = None
        if not self.host.format(kind.fingerprint, kind.size):
            return
        if not self.host.arena.count:
            self._too_large = kind
            self.context.log.error("no KV blocks are kept: one of %d bytes does not fit into --kv-offload", kind.size)
            return
        self.kind = kind
        for key in self.host.keys():  # of a predecessor, who may not have come to write them
            self.saving.offer(kind, key)
        slots, name = self.host.arena.count, kind.fingerprint.hex()[:16]
        self.context.log.info("KV blocks of %d bytes are kept as %s, up to %d in memory", kind.size, name, slots)
        if wish := self.host.arena.to_forget:
            self.saving.forget(kind, wish)

    def _kind_of(self, memory: EngineMemory) -> Kind | None:
        identity = self._identities.of(memory.folder, memory.weights) if memory.weights else None
        if identity is None:
            return None
        meanings = [part.meaning for part in memory.parts]
        fingerprint = make_fingerprint(identity, self.context.config, meanings)
        return Kind(fingerprint, memory.block_bytes)

    # --- messages ------------------------------------------------------------------------------------------------

    def handle(self, message: ToPorter) -> None:
        """It may come twice."""
        self._meet()
        match message:
            case Fetch():
                self._fetch(message)
            case ForgetTiers():
                self._forget()

    def _fetch(self, fetch: Fetch) -> None:
        keys = [fetch.keys[start : start + HASH_BYTES] for start in range(0, len(fetch.keys), HASH_BYTES)]
        self._count(Gauge.QUERIES, len(keys))
        if self.kind is None or self._fingerprints[fetch.engine] != self.kind:
            self._answer(fetch, [])
            return
        if len(self.engines) > 1:
            self._bring(keys)
        self.fetching.begin(fetch, self.kind, keys, self._carriers(fetch))

    def _carriers(self, fetch: Fetch) -> list[Carrier]:
        """Who is asked, one after the other: first the server that is said to have it."""
        if self.peers is None:
            return [*self._stores]
        peers = self.peers.named(fetch.peer)
        return [*peers, *self._stores] if fetch.peer else [*self._stores, *peers]

    def _find(self, kind: Kind, keys: list[bytes]) -> list[int]:
        """The slots of the first of these blocks, which another server wants."""
        if kind != self.kind:
            return []
        self._bring(keys)
        slots: list[int] = []
        for key in keys:
            slot = self.host.find(key)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def _bring(self, keys: list[bytes]) -> None:
        """What another engine has just computed is copied now, and not in its turn."""
        self._look()
        wanted = {key for key in keys if key not in self.host}
        for engine, block in list(self._changed) if wanted else ():
            found = self.engines[engine].map.look(block)
            if found is not None and found[1] in wanted:
                self._copy_one(engine, block)

    def _answer(self, fetch: Fetch, slots: list[int]) -> None:
        self.context.post(self.context.system.schedulers[fetch.engine], Fetched(fetch.number, pack(slots)))

    def _forget(self) -> None:
        self.host.forget()
        self.saving.clear()
        self.fetching.drop()
        if self._stores:
            self.host.arena.ask_to_forget()
            if self.kind is not None:
                self.saving.forget(self.kind, self.host.arena.to_forget)

    # --- turns ---------------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        """Answer what has been read, copy what has been computed, write what is not saved."""
        self.saving.settle()
        done = self.fetching.go_on(self.kind)
        if self.serving is not None:
            done += self.serving.turn(self._find)
        now = time.monotonic()
        if now >= self._look_at:
            self._meet()
            if self.kind is not None:
                self._look()
            self._look_at = now + (BUSY_S if self._changed or self.saving else QUIET_S)
        copied = self._copy() if self.kind is not None else 0
        written = self.saving.save(self.kind) if self.kind is not None else 0
        self._tell()
        more = bool(self._changed and self.kind) or (self.saving and written)
        self.wait_s = 0.001 if more and (copied or written) else min(IDLE_S, max(0.001, self._look_at - now))
        if self.fetching:
            self.wait_s = min(self.wait_s, BUSY_S)
        return done + copied + written

    def _copy(self) -> int:
        """Blocks that have been cached since the last look."""
        assert self.kind is not None
        copied, most = 0, max(1, TURN_BYTES // self.kind.size)
        while self._changed and copied < most:
            copied += self._copy_one(*self._changed.popleft())
        return copied

    def _copy_one(self, engine: int, block: int) -> bool:
        """A block that may be cached, and is not kept yet."""
        memory, kind = self.engines[engine], self.kind
        found = memory.map.look(block)
        if found is None or kind is None or self._fingerprints[engine] != kind or found[1] in self.host:
            return False
        slot = self.host.take()
        if slot is None:
            memory.map.again(block)
            return False
        key = memory.copy(block, self.host.arena.empty(slot))
        if key is None or key in self.host:
            self.host.give_back(slot)
            return False
        self.host.put(slot, key)
        self._count(Gauge.STORED, 1)
        self.saving.offer(kind, key)
        return True

    def _look(self) -> None:
        """Which blocks have been cached since the last time."""
        for engine, memory in enumerate(self.engines):
            self._changed += ((engine, block) for block in memory.map.changed())

    # --- what is said --------------------------------------------------------------------------------------------

    def _count(self, gauge: Gauge, number: int) -> None:
        self._counted[gauge] += number

    def _tell(self) -> None:
        counted, status = self._counted, self.context.status
        counted[Gauge.BLOCKS] = len(self.host)
        counted[Gauge.MEMORY_BYTES] = len(self.host) * (0 if self.kind is None else self.kind.size)
        counted[Gauge.FETCHING] = len(self.fetching)
        counted[Gauge.HELD] = self.host.held
        if self.plugin is not None:
            self.plugin.look()
            counted[Gauge.PLUGIN_ERRORS] = self.plugin.errors
        if self.peers is not None:
            counted[Gauge.PEER_ERRORS] = self.peers.counts.errors
        if self.serving is not None:
            counted[Gauge.GIVEN] = self.serving.given
        if self.folder is not None:
            counts = self.folder.counts
            counted[Gauge.FOLDER_BYTES], counted[Gauge.WRITTEN] = counts.bytes, counts.written
            counted[Gauge.WRITE_ERRORS], counted[Gauge.BAD_FILES] = counts.errors, counts.bad
            counted[Gauge.EVICTED] = counts.evicted
        for gauge, number in counted.items():
            status.set_gauge(gauge, self._base[gauge] + number)


def main(context: Context) -> None:
    """Run the porter until it is told to stop."""
    run(PorterActor(context), context)
