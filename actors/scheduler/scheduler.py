"""One engine's scheduler: its parts put together, and what goes over more than one of them.

    lifecycle.py   who is admitted, waits, has ended, and is to be spoken of
    planner.py     rows, blocks and budget: the next step; what of it has been computed
    results.py     tokens and ends that a step has brought
    recovery/      what a predecessor left behind, and who may be to blame for a death

An epoch is the scheduler's view of one worker: batch, blocks, prefix cache, planner and steps in flight are its own,
and end with it. Knows the request table, not the rings.

The table is the truth: whatever a scheduler must know to go on after its predecessor's death is there, and `admit`
picks a sequence up wherever it stood. The order of stores for a token is: computed (in the KV map), log, tokens cursor,
its block's hash (in the KV map), finish word, held (in the KV map).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.notes import BlockNotes
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.table.table import RequestTable, slot_of

from ..protocol.messages import Finish
from ..protocol.step import JOINED_S, KVLayout, Step, StepDone
from .administration.pause import PauseControl
from .administration.sleep import SleepControl
from .batch import RunningBatch
from .integrity import check_blocks, check_sequences, check_snapshots
from .lifecycle import Lifecycle
from .limits import Limits
from .lora.adapters import Adapters
from .memory.blocks import BlockPool
from .memory.prefix_cache import PrefixCache
from .memory.snapshots import Snapshots
from .memory.windows import WindowTables
from .metrics.request_stats import RequestStats
from .planned_step import PlannedStep
from .planner import Planner
from .policy.chunk_size import ChunkSizePolicy
from .policy.pictures import Items
from .policy.speculation import Speculation
from .recovery.suspects import Suspects, reached_by
from .recovery.takeover import Takeover, read_map
from .results import Results
from .sequence import Sequence
from .tiers.fetches import Fetches
from .waiting import WaitingQueue

STEPS_AHEAD = 2  # steps the worker has been given and not answered: one runs in each stage, the next waits behind them


class Scheduler:
    """The parts of one life, and those of its present epoch."""

    def __init__(
        self,
        table: RequestTable,
        limits: Limits,
        end_tokens: list[int],
        kv: KVMap | None = None,
        stats: RequestStats | None = None,
        items: Items | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """`kv` is the map that a predecessor has left and a successor finds; without it there is neither. `items`:
        slots' pictures, where the model sees some.
        """
        self.adapters = adapters
        self.table = table
        if kv is None:
            longest = -(-table.max_tokens // limits.block_size)
            kv = KVMap.private(table.slots, longest, longest * limits.max_num_seqs)
        self.kv = kv
        self.stats = stats or RequestStats(table)
        self.limits = limits
        self.lifecycle = Lifecycle(table, limits, end_tokens, self.stats, self._let_go, items)
        self.lifecycle.read_until = self._read_until
        if adapters is not None:
            self.lifecycle.knows_adapter = adapters.knows
        self.suspects = Suspects()
        self.speculation = Speculation(0 if limits.drafts_alone else limits.drafts, limits.drafts_alone)
        self.chunk_size = ChunkSizePolicy(limits.max_num_batched_tokens, limits.target_itl_s)
        self.results = Results(table, self.lifecycle, self.stats, self.speculation, self.chunk_size, limits.pools)
        self.planned = 0  # tokens that the worker was given to compute
        self.preemptions = self.queries = self.hits = self.snapshots = 0  # of earlier epochs
        self.prefix_resets = 0
        self.joins = self._brief = False  # does the worker tell of two brief steps at once, and was the last one brief
        self.epoch = 0
        self.jumps = 0  # see WorkerReady
        self.layout = KVLayout()  # of the worker
        self.pause = PauseControl(kv.pause)
        self.sleep = SleepControl(kv.sleep)
        self.tiers: Fetches | None = None  # of --kv-offload
        self.leaving: set[int] = set()  # refs that go to another engine as soon as no step of them is under way
        self.notes: BlockNotes | None = None  # of --kv-events-config
        self.others_end: Callable[[], bool] = lambda: True  # has what has begun in engines that may give it to this one
        self._start_engine(0)

    @property
    def sequences(self) -> dict[int, Sequence]:
        """Admitted and not finished, by ref."""
        return self.lifecycle.sequences

    @property
    def waiting(self) -> WaitingQueue:
        """Those of them that have no row."""
        return self.lifecycle.waiting

    # --- epochs --------------------------------------------------------------------------------------------------

    def _start_engine(self, num_blocks: int) -> None:
        limits = self.limits
        if self.tiers is not None:
            self.tiers.end()
        self.step = 0
        self.in_flight: deque[PlannedStep] = deque()
        self._told: tuple[PlannedStep | None, Step] = None, Step.make(0, 0, [], [], [])  # the last one
        self.batch = RunningBatch(limits.max_num_seqs)
        size, layout = limits.block_size, self.layout
        self.pool = BlockPool(num_blocks, self.kv)
        windows = WindowTables(self.pool, layout, size, -(-self.table.max_tokens // size))
        count = min(layout.snapshots, self.kv.snapshots.count) if limits.prefix_caching else 0
        snapshots = Snapshots(layout, count, self.kv.snapshots, size)
        self.prefix = PrefixCache(self.table, self.pool, windows, snapshots, size, limits.prefix_caching)
        self.prefix.notes = self.notes
        self.planner = Planner(limits, self.chunk_size, self.batch, self.pool, self.waiting, self.prefix, self.kv)
        self.leaving.clear()
        self.planner.leaving = self.leaving
        self.planner.adapters = self.adapters
        if self.adapters is not None:
            self.adapters.batch = self.batch
        if self.tiers is not None:
            self.tiers.begin()
            self.planner.loading = self.tiers.loading

    def begin_epoch(self, epoch: int, num_blocks: int, worker: int = 0, layout: KVLayout | None = None) -> None:
        """A worker without KV contents: every running sequence waits and is computed again from its log."""
        self.kv.begin(worker, num_blocks)
        self.end_epoch(epoch)
        self.layout = layout or self.layout
        self._start_engine(num_blocks)

    def end_epoch(self, epoch: int) -> None:
        """There is no worker: all wait, and what the map says stays for one that has the same memory."""
        self.preemptions += self.planner.memory.preemptions
        self.queries += self.prefix.queries
        self.hits += self.prefix.hits
        self.snapshots += self.prefix.snapshots.made_count
        for sequence in self.batch.running():
            self.batch.remove(sequence)
            sequence.blocks = []
            sequence.window_blocks.clear()
            self.waiting.add(sequence)
        for sequence in self.sequences.values():
            sequence.num_in_flight_tokens = 0  # those tokens are lost, and will be sampled again alike
        self.epoch = epoch
        self._start_engine(0)
        self.lifecycle.end_deferred()

    def take_over(
        self, epoch: int, num_blocks: int, worker: int, layout: KVLayout | None = None, since: int = 0
    ) -> Takeover | None:
        """The first epoch with this worker: what the map says of its KV memory goes on where it stood. It is a
        predecessor's map, or that of the worker before, if this one has the memory of lives `since` an earlier one.

        None if the map is of another memory, Contradiction if it cannot be; then nothing is changed.
        """
        assert not self.pool.count, "only a scheduler that has no worker can take over"
        if not self.kv.is_of(since, worker, num_blocks):
            return None
        layout = layout or KVLayout()
        found = read_map(self.kv, self.sequences, num_blocks, self.limits, layout)
        self.kv.pass_on(worker)
        self.epoch, self.layout = epoch, layout
        self._start_engine(num_blocks)
        for ref in found.ended:
            self.kv.release(slot_of(ref))
        self.pool.adopt([holding.blocks for holding in found.holdings], found.cached)
        if self.prefix.snapshots.pool.count:
            self.prefix.snapshots.pool.adopt([], found.saved)
        for holding in found.holdings:
            self.planner.adopted.adopt(holding.sequence, holding.blocks, holding.computed)
        self.lifecycle.end_deferred()  # what was under way is behind the worker's word that it is there
        batch, rows = self.batch, np.flatnonzero(self.batch.ticket)
        self.kv.confirm(batch.slot[rows], batch.generation[rows], batch.num_confirmed_tokens[rows])
        return found

    # --- sequences -----------------------------------------------------------------------------------------------

    def admit(self, ref: int) -> None:
        """Take up a sequence whose prompt is in the table, where its log stands. Known and finished ones are left."""
        self.lifecycle.admit(ref)

    def end(self, ref: int, code: Finish) -> None:
        """Finish a sequence from outside: its frontend cancelled it, or the detokenizer found a stop string."""
        self.lifecycle.end(ref, code)

    def _let_go(self, sequence: Sequence) -> None:
        """It has ended: what it holds is free."""
        if sequence.row is not None:
            self.batch.remove(sequence)
            self.planner.memory.release(sequence)
        self.suspects.forget(sequence.ref)

    def _read_until(self, sequence: Sequence) -> int | None:
        """The last step by which a member of the worker's group may read its slot; None: there is none."""
        if self.limits.members == 1 or not (self.in_flight or self.lifecycle.inherits):
            return None
        is_read = sequence.is_read if sequence.row is None else self.batch.is_read(sequence.row)
        return self.step if is_read else None

    def leave(self, sequence: Sequence) -> None:
        """It lets go of its row and blocks, and is not planned any more; what is under way still comes back."""
        self.batch.remove(sequence)
        self.planner.memory.release(sequence)
        self.waiting.add(sequence)
        self.leaving.add(sequence.ref)

    def turn_adapters(self) -> None:
        """Account for who has which adapter; who waits for one that cannot be read any more is ended."""
        if self.adapters is None:
            return
        for adapter in self.adapters.lost:
            for sequence in [one for one in self.sequences.values() if one.adapter == adapter]:
                if sequence.row is None or not self.batch.is_announced[sequence.row]:
                    self.end(sequence.ref, Finish.ADAPTER)
        self.adapters.lost.clear()
        self.adapters.turn(self.sequences)

    def announce_ends(self) -> None:
        """All that had moved is published: a successor need not say again who has ended."""
        if self.adapters is not None:
            self.adapters.published()
        for ref in self.lifecycle.take_ended():
            self.kv.set_announced(ref)

    def recover(self, admit: Callable[[int], None] | None = None, refs: Iterable[int] | None = None) -> int:
        """Admit a predecessor's sequences, tell ends that it could not tell any more. Returns how many go on. `refs`:
        those that are its own, if others have some, too.
        """
        admit, self.lifecycle.recovers = admit or self.admit, True
        self.lifecycle.inherits = self.limits.members > 1
        if refs is None:
            refs = self.table.current_refs(0, self.table.slots)
        for ref in sorted(refs, key=self.table.arrival_ns):
            if self.table.finish(ref) and not self.kv.is_announced(ref):
                self.lifecycle.has_ended(ref)
            admit(ref)
        self.lifecycle.recovers = False
        return len(self.sequences)

    # --- steps ---------------------------------------------------------------------------------------------------

    def plan(self) -> Step | None:
        """The next step for the worker, or None: nothing to do, or it is far enough ahead."""
        ahead = len(self.in_flight)
        if not self.pool.count or ahead >= self._most_ahead() or self._rests():
            return None
        if self.planner.micro_batches is not None:
            self.planner.micro_batches.ahead = ahead
        self.planner.drains = self.drains
        planned = self._plan_next()
        if self.planner.memory.preempted:
            self.stats.preempted(self.planner.memory.preempted)
        if planned is None:
            return None
        self.step += 1
        self.planned += planned.tokens
        self.in_flight.append(planned)
        share = self.speculation.cost.share(len(planned.rows)) if planned.drafts_on else 0.0
        if planned is self._told[0]:
            return self._told[1].again(self.step, share)
        self.stats.planned(planned.new)
        step = Step.make(
            self.epoch,
            self.step,
            planned.new,
            planned.rows,
            planned.counts,
            planned.new_blocks,
            share,
            [(save.row, save.snapshot) for save in planned.saves],
            planned.looks,
        )
        self._told = planned, step
        return step

    def _most_ahead(self) -> int:
        """Steps that the worker has at most. One more where it tells of two at once: it computes that meanwhile."""
        most = self.limits.stages + STEPS_AHEAD - 1
        joined = self.joins and self._brief and not self.suspects and self.planner.repeats()
        return most + 1 if joined else most

    @property
    def drains(self) -> bool:
        """Does an operator wait until all that has begun has ended?"""
        return self.pause.state.drains or self.sleep.state.draining

    def is_drained(self) -> bool:
        """Has it ended?"""
        return not len(self.batch) and self.waiting.first_begun() is None and self.others_end()

    def _rests(self) -> bool:
        """An operator wants nothing to be computed."""
        return self.pause.state is PauseState.PAUSED or self.sleep.is_asleep

    def fills_pipeline(self) -> bool:
        """Whether a stage has nothing to compute that it might have."""
        return len(self.in_flight) < self.limits.stages and self.planner.fills_pipeline()

    def _plan_next(self) -> PlannedStep | None:
        """What the planner says, unless somebody is on trial: that one runs alone."""
        ref = self.suspects.on_trial()
        if ref is None:
            self.planner.jumps = self.jumps
            self.planner.drafts = self.speculation.num_draft_tokens(len(self.batch))
            return self.planner.plan()
        return None if self.in_flight else self.planner.plan_alone(self.sequences[ref])

    def apply(self, done: StepDone) -> None:
        """Account for a step that has come back; one of an earlier epoch is left."""
        if done.epoch != self.epoch:
            return
        self._brief = done.seconds < JOINED_S
        self.results.apply(self.planner, self.in_flight.popleft(), done)
        if self.lifecycle.deferred:
            self.lifecycle.end_deferred(done.step)
        for ref in self.suspects.clear_computed(self.sequences, self.batch) if self.suspects else ():
            if self.table.moves(ref)[1]:  # a successor, or another engine, would find it suspect
                self.table.clear_deaths(ref)

    # --- deaths and failures -------------------------------------------------------------------------------------

    def blame(self) -> list[int]:
        """The worker has died at the oldest step, if there is one, or in an earlier stage at a later one: who is
        convicted is given up (refs returned).
        """
        return self._suspect(list(self.in_flight)[: self.limits.stages])

    def fail_step(self) -> list[int]:
        """The worker could not compute the oldest step: likewise. It lives on."""
        return self._suspect([self.in_flight[0]])

    def _suspect(self, steps: list[PlannedStep]) -> list[int]:
        convicted = self.suspects.blame(reached_by(self.batch, steps))
        for ref in convicted:
            self.end(ref, Finish.ERROR)
        return convicted

    # --- the prefix cache ----------------------------------------------------------------------------------------

    def reset_prefix_cache(self, recompute_running: bool = False) -> int:
        """No later request finds a prefix that was computed before; returns how many blocks could be found until now.

        Who runs goes on in its blocks, of which the cache is offered none any more, or is computed again in others. The
        map is the first to know: a successor must not find what this one has dropped. Before the worker is met it is a
        predecessor's map, which is changed alike.
        """
        self.prefix_resets += 1
        if self.tiers is not None:
            self.tiers.forget()
        dropped = self.prefix.forget()
        self.batch.withhold()
        if recompute_running:
            if not self.pool.count:
                self.kv.disown()
            for sequence in self.batch.running():
                self.planner.memory.preempt(sequence)
            self.stats.preempted(self.planner.memory.preempted)
        return dropped

    def check_integrity(self) -> None:
        """AssertionError says which invariant does not hold. For tests, and when idle in debug."""
        self.batch.check_integrity()
        check_sequences(self.lifecycle, self.batch, self.table)
        check_blocks(self.batch, self.pool, self.kv, () if self.tiers is None else self.tiers.held())
        check_snapshots(self.in_flight, self.prefix.snapshots)
