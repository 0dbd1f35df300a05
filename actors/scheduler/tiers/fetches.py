"""Blocks that are fetched from the tiers (--kv-offload) before a prompt is computed: who waits for which, and how long.

A sequence is looked at once, when it is admitted, or when a worker without KV contents is met: if blocks of its prompt
are not cached, the porter is asked for them, and the sequence does not start before it is known what came of that. What
is in the host's memory then the worker copies into blocks that nobody else has; only when all of its group have done so
the prefix cache, and with it the KV map, hears of them. The sequence finds them there as any other does.

    asked      until WAIT_S have passed, or Fetched comes; steps go on, and others start
    loading    LoadBlocks is in the worker's lane, a part at a time, so that no step waits for more than one part
    over       who waited may start, and computes what is not there

What a death leaves: nothing of this stands in the KV map before a block is whole. A scheduler's successor asks anew;
the blocks are clean to it, and its steps come behind the copies in the worker's lane. A worker's successor drops the
copies, and whoever waited is looked at again. A porter's successor finds the messages, or they are not answered in
time; if that happens again and again, nobody is made to wait for a while. Which slots of the arena a fetch has, and
until when, says shm/kv_tier/arena.py: a number is settled when its fetch is over, and all before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.topics.tiers import BlocksLoaded, Fetch, Fetched, ForgetTiers, LoadBlocks
from ...protocol.wire import pack, unpack
from ..sequence import Sequence

if TYPE_CHECKING:
    from ..scheduler import Scheduler

WAIT_S = 0.5  # for the porter's answer
PEER_WAIT_S = 2.0  # where a request names the server that has computed it
MOST_FETCHES = 64  # under way; who comes then is computed as if there were no tiers
MOST_KEYS = 4096  # of a fetch
PART = 16  # blocks that are copied between two steps
MOST_LATE = 3  # fetches one after the other that were not answered ...
PAUSE_S = 5.0  # ... after which nobody is asked for so long


@dataclass(slots=True)
class TierFetch:
    """One fetch."""

    number: int
    keys: list[bytes]  # of all blocks from the prompt's first on
    first: int  # of them that is asked for
    deadline: float
    peer: str = ""  # the server that is asked beside the tiers
    refs: set[int] = field(default_factory=set)  # who waits
    held: list[int] = field(default_factory=list)  # blocks before and behind `first`, until it is over
    tokens: memoryview | None = None  # of the keys, where somebody is told of blocks, up to the first picture
    adapter: int = 0
    parts: deque[tuple[list[int], list[int], int]] = field(default_factory=deque)  # blocks, slots, index of the first


class Fetches:
    """Those of one scheduler. `outbox`: messages for the porter and the worker, until they are taken."""

    def __init__(self, scheduler: Scheduler, engine: int, life: int, workers: int) -> None:
        """`workers` of a group, that all must have copied a block."""
        self.outbox: deque[Fetch | ForgetTiers | LoadBlocks] = deque()
        self.loading: set[int] = set()  # refs that do not start yet
        self.tokens = self.late = 0  # that were fetched; fetches that were not answered in time
        self._scheduler, self._engine, self._workers = scheduler, engine, workers
        self._number = life << 32
        self._to_look: deque[int] = deque()  # refs
        self._asked: dict[int, TierFetch] = {}  # by number
        self._copying: dict[int, TierFetch] = {}
        self._by_key: dict[tuple[bytes, str], TierFetch] = {}  # by the first key that is asked for, and of whom
        self._copies: deque[TierFetch] = deque()  # whose parts are copied one after the other
        self._under_way: tuple[int, set[int]] | None = None  # number of a LoadBlocks, and who has not done it
        self._late_in_turn, self._closed_until = 0, 0.0

    # --- who is looked at ----------------------------------------------------------------------------------------

    def admitted(self, ref: int) -> None:
        """It has been taken up."""
        self._to_look.append(ref)

    def end(self) -> None:
        """Of an epoch: nothing that was under way comes to anything."""
        self._drop_all()

    def begin(self) -> None:
        """Another epoch: all who wait are looked at again."""
        self._to_look = deque(sequence.ref for sequence in self._scheduler.waiting.in_order())

    def forget(self) -> None:
        """The prefix cache is reset: what was kept of it is not to be found, nor what is being copied."""
        self._drop_all()
        self.outbox.append(ForgetTiers())

    def _drop_all(self) -> None:
        """Copies that are in the worker's lane are made before any step that is planned now, which may write there."""
        for wanted in [*self._asked.values(), *self._copying.values()]:
            self._let_go(wanted)
        self._asked.clear()
        self._copying.clear()
        self._by_key.clear()
        self._copies.clear()
        self._under_way = None
        self.loading.clear()

    def turn(self, is_up: bool) -> None:
        """Look at who has come, and at who waits too long. `is_up`: there is a porter."""
        now = time.monotonic()
        for wanted in [one for one in self._asked.values() if one.deadline <= now]:
            self.late += 1
            self._late_in_turn += 1
            if self._late_in_turn >= MOST_LATE:
                self._closed_until = now + PAUSE_S
            self._over(wanted)
        if not self._scheduler.pool.count:
            return
        while self._to_look:
            sequence = self._scheduler.sequences.get(self._to_look.popleft())
            if sequence is not None and is_up and now >= self._closed_until:
                self._look(sequence, now)

    @property
    def wait_s(self) -> float | None:
        """How long until somebody has waited too long; None if nobody waits."""
        if not self._asked:
            return None
        return max(0.001, min(wanted.deadline for wanted in self._asked.values()) - time.monotonic())

    def _look(self, sequence: Sequence, now: float) -> None:
        prefix, pool = self._scheduler.prefix, self._scheduler.pool
        if sequence.row is not None or len(self._asked) + len(self._copying) >= MOST_FETCHES:
            return
        keys = prefix.keys(sequence)[:MOST_KEYS]
        first = len(pool.match(keys))
        if first >= len(keys):
            return
        asked_for = (
            keys[first],
            sequence.kv_peer,
        )  # one that names nobody may find nothing where this one's server has it
        wanted = self._by_key.get(asked_for)
        if wanted is None:
            self._number += 1
            wait_s = PEER_WAIT_S if sequence.kv_peer else WAIT_S
            wanted = TierFetch(self._number, keys, first, now + wait_s, sequence.kv_peer)
            if self._scheduler.notes is not None:
                size = prefix.block_size
                told = next((at for at in range(len(keys)) if sequence.pictures.are_before((at + 1) * size)), len(keys))
                tokens = self._scheduler.table.token_ids(sequence.ref, 0, told * size)
                wanted.tokens, wanted.adapter = memoryview(bytes(memoryview(tokens))), sequence.adapter
            self._asked[wanted.number] = self._by_key[asked_for] = wanted
            self.outbox.append(Fetch(self._engine, wanted.number, b"".join(keys[first:]), sequence.kv_peer))
        wanted.refs.add(sequence.ref)
        self.loading.add(sequence.ref)

    # --- what comes of it ----------------------------------------------------------------------------------------

    def fetched(self, message: Fetched) -> None:
        """These slots have what was asked for; if somebody waits still, they are copied."""
        wanted = self._asked.get(message.number)
        if wanted is None:
            return
        self._late_in_turn = 0
        slots, pool = unpack(message.packed_slots).tolist(), self._scheduler.pool
        found = pool.match(wanted.keys[: wanted.first + len(slots)])
        slots = slots[len(found) - wanted.first :]
        if len(found) < wanted.first or not slots:
            self._over(wanted)
            return
        pool.hold(found)
        wanted.held = found
        room = pool.free - len(self._scheduler.batch)  # each row may soon need a block
        blocks = pool.allocate(min(len(slots), room), after=found[-1] if found else None) if room > 0 else None
        if not blocks:
            self._over(wanted)
            return
        wanted.held = found + blocks
        for start in range(0, len(blocks), PART):
            end = min(start + PART, len(blocks))  # there may be room for fewer than were found
            part = blocks[start:end], slots[start:end], len(found) + start
            wanted.parts.append(part)
        self._copying[wanted.number] = self._asked.pop(wanted.number)
        self._copies.append(wanted)
        self._copy_next()

    def _copy_next(self) -> None:
        """One part at a time is in the worker's lane."""
        if self._under_way is not None or not self._copies:
            return
        blocks, slots, _ = self._copies[0].parts[0]
        self._number += 1
        self._under_way = self._number, set(range(self._workers))
        self.outbox.append(LoadBlocks(self._number, pack(blocks), pack(slots)))

    def loaded(self, message: BlocksLoaded) -> None:
        """One of the group has copied a part; when all have, the prefix cache has it."""
        if self._under_way is None or message.number != self._under_way[0]:
            return
        self._under_way[1].discard(message.rank)
        if self._under_way[1]:
            return
        self._under_way = None
        wanted = self._copies[0]
        blocks, _, first = wanted.parts.popleft()
        for index, block in enumerate(blocks, first):
            self._note(wanted, block, index)
            self._scheduler.pool.register(block, wanted.keys[index])
        self.tokens += len(blocks) * self._scheduler.limits.block_size
        if not wanted.parts:
            self._copies.popleft()
            self._over(wanted)
        self._copy_next()

    def _note(self, wanted: TierFetch, block: int, index: int) -> None:
        """What stands in it, for whoever is told of blocks."""
        if self._scheduler.notes is not None and wanted.tokens is not None:
            size = 4 * self._scheduler.limits.block_size
            if (index + 1) * size > len(wanted.tokens):
                self._scheduler.notes.write_untold(block)
                return
            parent = wanted.keys[index - 1] if index else None
            tokens = wanted.tokens[index * size : (index + 1) * size]
            self._scheduler.notes.write(block, parent, wanted.adapter, tokens)

    def _over(self, wanted: TierFetch) -> None:
        """Who waited for it may start."""
        self._asked.pop(wanted.number, None)
        self._copying.pop(wanted.number, None)
        self._by_key.pop((wanted.keys[wanted.first], wanted.peer), None)
        self._let_go(wanted)
        self.loading -= wanted.refs

    def _let_go(self, wanted: TierFetch) -> None:
        self._scheduler.pool.release(wanted.held)
        wanted.held = []

    # --- what others must know -----------------------------------------------------------------------------------

    def counts(self) -> tuple[int, int, int]:
        """Tokens that were fetched, fetches that were late, and how many wait now."""
        return self.tokens, self.late, len(self.loading)

    @property
    def settled(self) -> int:
        """All numbers below are over."""
        return min([*self._asked, *self._copying], default=self._number + 1)

    def held(self) -> Iterable[list[int]]:
        """Blocks that are held for those who wait."""
        return [wanted.held for wanted in self._copying.values()]
