"""What the next step computes: the token budget, blocks and rows given out. Knows no message queue and no results.

One budget a step and no phases: every sequence has computed and known tokens, and a step lets the first catch up.
Order: rows that decode, rows in prefill (oldest first), then waiting sequences, as long as nobody had to be preempted,
then room for drafts of rows that decode (scheduler/policy/speculation.py).
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from actorserve.shm.kv_map.map import KVMap

from .batch import Bools, Ints, RunningBatch
from .limits import Limits
from .lora.adapters import Adapters
from .memory.allocation import Allocation
from .memory.blocks import BlockPool
from .memory.prefix_cache import PrefixCache
from .planned_step import NewRows, PlannedStep, SteadyPlan, Untold
from .policy.chunk_size import ChunkSizePolicy
from .policy.micro_batches import MicroBatches
from .policy.prompt_chunks import PromptChunks
from .recovery.adopted_rows import AdoptedRows
from .sequence import Sequence
from .waiting import WaitingQueue


class Planner:
    """Gives rows, blocks and budget to sequences. Who holds what is in the KV map before the worker hears of it."""

    def __init__(
        self,
        limits: Limits,
        chunk_size: ChunkSizePolicy,
        batch: RunningBatch,
        pool: BlockPool,
        waiting: WaitingQueue,
        prefix: PrefixCache,
        kv: KVMap,
    ) -> None:
        self.batch = batch
        self.waiting = waiting
        self.prefix = prefix
        self.windows, self.snapshots = prefix.windows, prefix.snapshots
        self.kv = kv
        self.memory = Allocation(batch, pool, waiting, prefix, kv)
        self.adopted = AdoptedRows(batch, waiting, kv, prefix.block_size)
        self.budget = limits.max_num_batched_tokens
        self.adapters: Adapters | None = None  # without which there are none
        self.loading: Set[int] = frozenset()  # refs whose blocks are being fetched
        self.leaving: Set[int] = frozenset()  # refs that go to another engine
        self.drains = False  # none begins that has not begun before
        self.drafts = 0  # that a row of the next step may have
        self.jumps = 0  # tokens without a choice that a row with a grammar may have
        self.chunk_size = chunk_size.chunk  # tokens of prompts beside so many decoding rows
        self.chunks = PromptChunks(limits, batch, waiting, self.memory, self.snapshots, chunk_size)
        self.micro_batches: MicroBatches | None = None
        if limits.stages > 1:
            self.micro_batches = MicroBatches(limits.stages, batch, chunk_size.decoding)
        self._steady: SteadyPlan | None = None
        self._untold = Untold(batch)
        self._turn = 0  # the row that decodes first where the budget is too small for all

    def plan(self) -> PlannedStep | None:
        """The next step, or None when there is nothing to compute.

        Prompts whose blocks of windows are all held by one another go on when the last of them gives up its own.
        """
        if (steady := self._repeated()) is not None:
            return self._again(steady)
        while (step := self._plan_once()) is None and self.chunks.starved and len(self.batch) > 1:
            self.memory.preempt(max(self.batch.running(), key=self.waiting.rank))
        return step

    def repeats(self) -> bool:
        """Whether the next plan is the last one once more."""
        return self._repeated() is not None

    def _repeated(self) -> SteadyPlan | None:
        steady = self._steady
        if steady is not None and steady.goes_on(self._room_of_each()) and (self.batch.full or not self.waiting):
            return steady
        return None

    def _again(self, steady: SteadyPlan) -> PlannedStep | None:
        micro = self.micro_batches
        if micro is None:
            return steady.again()
        if not micro.may_repeat:
            return None
        micro.planned(steady.step.rows)
        return steady.again()

    def _plan_once(self) -> PlannedStep | None:
        memory, chunks = self.memory, self.chunks
        preempted, new = memory.preemptions, NewRows(self._untold.size)
        memory.begin_plan()
        self.adopted.announce(self.adapters, new)
        decode = memory.rows_with_room(self._decode_rows())
        rows, counts = [decode], [np.ones(len(decode), np.int64)]
        left = min(self.budget - len(decode), self.chunk_size(self._num_decoding(decode)))
        kept = self.budget - len(decode) - left  # from prompts, so that the step is short
        chunks.begin(left, len(decode), kept)
        chunk_rows, chunk_counts = chunks.of_rows(left)
        left -= sum(chunk_counts)
        while chunks.left(left) > 0 and memory.preemptions == preempted and not (self.batch.full or new.is_full):
            row = self._start_next(left, new)
            if row is None:
                break
            if count := chunks.of(row, left):  # workers take each row of a step for one with tokens
                chunk_rows.append(row)
                chunk_counts.append(count)
                left -= count
        rows.append(np.array(chunk_rows, np.int64))
        counts.append(np.array(chunk_counts, np.int64))
        left += kept
        tokens = self.budget - left
        step = PlannedStep(np.concatenate(rows), np.concatenate(counts), tokens, new=new.rows)
        step.drafts_on = self.drafts > 0
        if left > 0 and len(decode) and (self.drafts or (self.jumps and self.batch.is_constrained[decode].any())):
            step.num_draft_tokens = np.zeros(len(step.rows), np.int64)
            step.num_draft_tokens[: len(decode)] = self._num_draft_tokens(decode, left)
            step.counts += step.num_draft_tokens
        if (encoder := chunks.encoder) is not None:
            step.encoded, step.looks = encoder.planned, encoder.looks
            step.looking = [(row, int(self.batch.ticket[row])) for row, *_ in step.looks]
        accounted = self._account(step)
        self._steady = None
        if self._can_come_again(step, len(decode)):
            self._steady = SteadyPlan.of(self.batch, step, self._room_of_each())
        return accounted

    def _room_of_each(self) -> int:
        """What each row of the batch has room for beside its next token, if all have alike."""
        return self.jumps if self.jumps and self.batch.all_constrained else self.drafts

    def _can_come_again(self, step: PlannedStep, decoding: int) -> bool:
        """Whether all rows decode, of a model that keeps nothing of them but blocks."""
        plain = not (self.windows.tables or self.snapshots.needed)
        return plain and decoding == len(step.rows) == len(self.batch) > 0

    def plan_alone(self, sequence: Sequence) -> PlannedStep | None:
        """A step of this sequence and no other."""
        self.chunks.begin(self.budget)
        batch, new = self.batch, NewRows()
        self.memory.begin_plan()
        told = sequence.row is not None and self.batch.is_announced[sequence.row]
        if not told and not self._makes_room_for_adapter(sequence):
            return None
        while sequence.row is None and (batch.full or self._start(sequence, new) is None):
            running = batch.running()
            if not running:
                return None
            self.memory.preempt(max(running, key=self.waiting.rank))
        row = sequence.row
        assert row is not None
        if not batch.is_announced[row]:
            self.adopted.announce_row(sequence, row, new)
        if batch.num_computed_tokens[row] + 1 > batch.num_block_tokens[row]:
            self.memory.grow(sequence)
            if sequence.row is None:
                return None
        while not (count := self.chunks.of(row, self.budget)) and self.chunks.starved and len(batch) > 1:
            self.memory.preempt(
                max((other for other in batch.running() if other is not sequence), key=self.waiting.rank)
            )
        rows = np.array([row] if count else [], np.int64)
        return self._account(PlannedStep(rows, np.full(len(rows), count, np.int64), count, new=new.rows))

    def _makes_room_for_adapter(self, sequence: Sequence) -> bool:
        """Is the adapter of the one that is to run alone in memory? Who holds all room there with others lets go of it:
        they would run, and with them end, only after that one.
        """
        adapters = self.adapters
        while adapters is not None and not adapters.is_there(sequence.adapter):
            holders = [one for one in self.batch.running() if one.adapter]
            if adapters.is_asked_for(sequence.adapter) or not holders:
                return False
            self.memory.preempt(max(holders, key=self.waiting.rank))
        return True

    def _account(self, step: PlannedStep) -> PlannedStep | None:
        step.new_blocks = self.memory.new_blocks
        self._untold.tell(step)
        if not len(step.rows):
            self._untold.keep(step)
            return None
        if not len(step.num_draft_tokens):
            step.num_draft_tokens = np.zeros(len(step.rows), np.int64)
        step.tickets = self.batch.ticket[step.rows]
        step.decoding = int(np.count_nonzero(step.counts - step.num_draft_tokens == 1))
        step.saves = self.snapshots.plan(self.batch, step.rows, step.counts)
        step.samples = self.batch.advance(step.rows, step.counts, step.num_draft_tokens)
        drawing = step.rows[step.samples]
        step.refs = self.batch.refs(drawing)
        if self.micro_batches is not None:
            self.micro_batches.planned(drawing)
        return step

    def confirm(self, step: PlannedStep, drawn: Ints) -> Bools:
        """A step has come back, in which its sampling rows drew so many tokens each. What of it is computed stands in
        the KV map then; returns which of its rows have the same sequences still.
        """
        self.kv.prove()
        batch = self.batch
        alive = batch.still(step.rows, step.tickets)
        rows, missed = step.rows[alive], step.num_draft_tokens.copy()
        missed[step.samples] -= drawn - 1
        batch.confirm(rows, step.counts[alive], missed[alive])
        if self._steady is not None and step.drafts_on:
            self._steady.came_back(step, int(missed.min()))
        self.kv.confirm(batch.slot[rows], batch.generation[rows], batch.num_confirmed_tokens[rows])
        return alive

    def confirm_again(self, step: PlannedStep, slots: Ints, words: Ints) -> None:
        """As `confirm`, of a step that was planned again and in which every row drew one token, where `words` are what
        the KV map says of these slots then; the batch knows already.
        """
        self.kv.prove()
        self.kv.confirm_words(slots, words)
        if self._steady is not None and step.room:
            self._steady.came_back(step, step.room)

    def _decode_rows(self) -> Ints:
        decode, prompts = self.batch.due()
        if self.micro_batches is not None:
            decode = self.micro_batches.choose(decode, alone=not (len(prompts) or self.waiting))
        most = self.budget - self.chunks.next_picture(prompts)
        if len(decode) <= most:
            return decode
        first = int(np.searchsorted(decode, self._turn))
        chosen: Ints = np.roll(decode, -first)[:most]
        self._turn = int(chosen[-1]) + 1 if most else self._turn
        return chosen

    def _num_decoding(self, decode: Ints) -> int:
        """How many rows decode in a step such as this one; of a pipeline some step may have none of them."""
        micro = self.micro_batches
        return len(decode) if micro is None else max(len(decode), micro.share(len(self.batch.due()[0])))

    def fills_pipeline(self) -> bool:
        """Whether there is something to compute that needs no token of a step in flight."""
        micro, (decode, prompts) = self.micro_batches, self.batch.due()
        return micro is not None and bool(len(prompts) or self.waiting or micro.has_ready(decode))

    def _num_draft_tokens(self, decode: Ints, left: int) -> Ints:
        """How many drafts each of these rows may have beside its next token."""
        batch = self.batch
        most = batch.may_be_drafted[decode] * self.drafts
        if self.jumps:
            most[batch.is_constrained[decode]] = self.jumps
        want = np.minimum(most, (batch.max_num_tokens[decode] - batch.num_known_tokens[decode] - 1) // 2)
        want = self.memory.add_for_drafts(decode, want)
        num_draft_tokens: Ints = np.clip(left - (np.cumsum(want) - want), 0, want)
        return num_draft_tokens

    def _start_next(self, left: int, new: NewRows) -> int | None:
        """Move the first waiting sequence into a row, if it can be; one that cannot be cut, if it fits in."""
        sequence = self._next_waiting()
        if sequence is None or not self.chunks.fits(sequence, left):
            return None
        return self._start(sequence, new)

    def _next_waiting(self) -> Sequence | None:
        but = self.loading | self.leaving if self.leaving else self.loading
        if self.adapters is not None:
            return self.adapters.first(self.waiting, but, begun=self.drains)
        return self.waiting.first_begun(but) if self.drains else self.waiting.first(but)

    def _start(self, sequence: Sequence, new: NewRows) -> int | None:
        """Move a waiting sequence into a row, if its blocks are there and its last token has come back."""
        if sequence.num_in_flight_tokens or (row := self.memory.start(sequence, self.budget)) is None:
            return None
        computed = int(self.batch.num_computed_tokens[row])
        restored = -1
        if computed and self.snapshots.needed:
            restored = self.snapshots.find(sequence.hashes[computed // self.prefix.block_size - 1])
        new.add(sequence.new_row(row, computed, restored), self.windows.tables * len(sequence.window_blocks))
        return row
