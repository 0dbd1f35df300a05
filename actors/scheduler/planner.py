"""What the next step computes: the token budget, blocks and rows given out. Knows no message queue and no results.

One budget a step and no phases: every sequence has computed and known tokens, and a step lets the first catch up.
Order: rows that decode, rows in prefill (oldest first), then waiting sequences, as long as nobody had to be preempted,
then room for drafts of rows that decode (scheduler/policy/speculation.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set

import numpy as np

from actorserve.shm.kv_map.map import KVMap

from ..protocol.step import NewRow
from .batch import NEVER, Bools, Ints, RunningBatch
from .lora.adapters import Adapters
from .memory.blocks import BlockPool
from .memory.prefix_cache import PrefixCache
from .planned_step import PlannedStep, SteadyPlan
from .policy.micro_batches import MicroBatches
from .policy.pictures import EncoderBudget
from .sequence import Sequence
from .waiting import WaitingQueue

NUM_SPARE_BLOCKS = 4  # room that a new sequence is given behind its prompt, if there is any
MAX_ANNOUNCED_BLOCKS = 1 << 14  # a step that has told the worker of so many blocks tells of no more adopted rows


class Planner:
    """Gives rows, blocks and budget to sequences. Who holds what is in the KV map before the worker hears of it."""

    def __init__(
        self, batch: RunningBatch, pool: BlockPool, waiting: WaitingQueue, prefix: PrefixCache, kv: KVMap, budget: int
    ) -> None:
        self.batch = batch
        self.pool = pool
        self.waiting = waiting
        self.prefix = prefix
        self.windows, self.snapshots = prefix.windows, prefix.snapshots
        self.kv = kv
        self.budget = budget
        self.long_prefill = budget  # tokens of one prompt in a step
        self.preemptions = 0
        self.preempted: list[int] = []  # refs, until they are recorded
        self.adapters: Adapters | None = None  # without which there are none
        self.loading: Set[int] = frozenset()  # refs whose blocks are being fetched
        self.leaving: Set[int] = frozenset()  # refs that go to another engine
        self.drains = False  # none begins that has not begun before
        self.drafts = 0  # that a row of the next step may have
        self.chunk_size: Callable[[int], int] = lambda decoding: (
            budget
        )  # tokens of prompts beside so many decoding rows
        self.encoder: EncoderBudget | None = None  # where the model sees pictures
        self.micro_batches: MicroBatches | None = None  # where the model is divided into stages
        self._adopted: deque[tuple[Sequence, int]] = deque()  # of which the worker is not told yet, with their tickets
        self._starved = False  # in the last plan a prompt found no block for its windows
        self._steady: SteadyPlan | None = None
        self._room = budget  # for prompts in this plan, before any was given some
        self._turn = 0  # the row that decodes first where the budget is too small for all

    def plan(self) -> PlannedStep | None:
        """The next step, or None when there is nothing to compute.

        Prompts whose blocks of windows are all held by one another go on when the last of them gives up its own.
        """
        steady = self._steady
        if steady is not None and steady.goes_on(self.drafts) and (self.batch.full or not self.waiting):
            return self._again(steady)
        while (step := self._plan_once()) is None and self._starved and len(self.batch) > 1:
            self.preempt(max(self.batch.running(), key=self.waiting.rank))
        return step

    def _again(self, steady: SteadyPlan) -> PlannedStep | None:
        micro = self.micro_batches
        if micro is None:
            return steady.again()
        if not micro.may_repeat:
            return None
        micro.planned(steady.step.rows)
        return steady.again()

    def _plan_once(self) -> PlannedStep | None:
        self._starved = False
        preempted = self.preemptions
        new_blocks: list[tuple[int, int, int]] = []
        new = self._announce_adopted()
        decode = self._with_blocks(self._decode_rows(), new_blocks)
        rows, counts = [decode], [np.ones(len(decode), np.int64)]
        left = self._room = min(self.budget - len(decode), self.chunk_size(self._num_decoding(decode)))
        kept = self.budget - len(decode) - left  # from prompts, so that the step is short
        if self.encoder is not None:
            self.encoder.begin(len(decode), kept)
        chunk_rows, chunk_counts = self._prefill_chunks(left, new_blocks)
        left -= sum(chunk_counts)
        while left > 0 and self.preemptions == preempted and not self.batch.full:
            row = self._start_next(left, new, new_blocks)
            if row is None:
                break
            chunk_rows.append(row)
            chunk_counts.append(self._chunk(row, left, new_blocks))
            left -= chunk_counts[-1]
        rows.append(np.array(chunk_rows, np.int64))
        counts.append(np.array(chunk_counts, np.int64))
        left += kept
        tokens = self.budget - left
        step = PlannedStep(np.concatenate(rows), np.concatenate(counts), tokens, new=new, new_blocks=new_blocks)
        step.drafts_on = self.drafts > 0
        if self.drafts and left > 0 and len(decode):
            step.num_draft_tokens = np.zeros(len(step.rows), np.int64)
            step.num_draft_tokens[: len(decode)] = self._num_draft_tokens(decode, left, new_blocks)
            step.counts += step.num_draft_tokens
        if self.encoder is not None:
            step.encoded, step.looks = self.encoder.planned, self.encoder.looks
        accounted = self._account(step)
        self._steady = SteadyPlan.of(self.batch, step, self.drafts) if self._can_come_again(step, len(decode)) else None
        return accounted

    def _can_come_again(self, step: PlannedStep, decoding: int) -> bool:
        """Whether all rows decode, of a model that keeps nothing of them but blocks."""
        plain = not (self.windows.tables or self.snapshots.needed)
        return plain and decoding == len(step.rows) == len(self.batch) > 0

    def plan_alone(self, sequence: Sequence) -> PlannedStep | None:
        """A step of this sequence and no other."""
        self._starved, self._room = False, self.budget
        if self.encoder is not None:
            self.encoder.begin(0, 0)
        new: list[NewRow] = []
        new_blocks: list[tuple[int, int, int]] = []
        batch = self.batch
        if sequence.row is None and not self._makes_room_for_adapter(sequence):
            return None
        while sequence.row is None and (batch.full or self._start(sequence, new, new_blocks) is None):
            running = batch.running()
            if not running:
                return None
            self.preempt(max(running, key=self.waiting.rank))
        row = sequence.row
        assert row is not None
        if not batch.is_announced[row]:
            new.append(self._announce(sequence, row))
        if batch.num_computed_tokens[row] + 1 > batch.num_block_tokens[row]:
            self._grow(sequence, new_blocks)
            if sequence.row is None:
                return None
        while not (count := self._chunk(row, self.budget, new_blocks)) and self._starved and len(batch) > 1:
            self.preempt(max((other for other in batch.running() if other is not sequence), key=self.waiting.rank))
        rows = np.array([row] if count else [], np.int64)
        return self._account(
            PlannedStep(rows, np.full(len(rows), count, np.int64), count, new=new, new_blocks=new_blocks)
        )

    def _makes_room_for_adapter(self, sequence: Sequence) -> bool:
        """Is the adapter of the one that is to run alone in memory? Who holds all room there with others lets go of it:
        they would run, and with them end, only after that one.
        """
        adapters = self.adapters
        while adapters is not None and not adapters.is_there(sequence.adapter):
            holders = [one for one in self.batch.running() if one.adapter]
            if adapters.is_asked_for(sequence.adapter) or not holders:
                return False
            self.preempt(max(holders, key=self.waiting.rank))
        return True

    def adopt(self, sequence: Sequence, blocks: list[int], computed: int) -> None:
        """A predecessor's row goes on in blocks that it held, once the worker is told in which row."""
        self.waiting.remove(sequence.ref)
        sequence.blocks = blocks
        sequence.has_run = True
        registered = NEVER if self.kv.is_stale(sequence.ref) else 0
        row = self.batch.place(sequence, computed, len(blocks) * self.prefix.block_size, registered)
        self.batch.is_announced[row] = False
        self._adopted.append((sequence, int(self.batch.ticket[row])))

    def _announce_adopted(self) -> list[NewRow]:
        """Adopted rows that are still there, as many as a step may tell of; one may yet be preempted in this plan."""
        new: list[NewRow] = []
        blocks = 0
        while self._adopted and blocks < MAX_ANNOUNCED_BLOCKS:
            sequence, ticket = self._adopted.popleft()
            row = sequence.row
            if row is not None and self.batch.ticket[row] == ticket and not self.batch.is_announced[row]:
                new.append(self._announce(sequence, row))
                blocks += len(sequence.blocks)
        return new

    def _announce(self, sequence: Sequence, row: int) -> NewRow:
        self.batch.is_announced[row] = True
        return sequence.new_row(row, int(self.batch.num_computed_tokens[row]))

    def _account(self, step: PlannedStep) -> PlannedStep | None:
        if not len(step.rows):
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
        if len(decode) <= self.budget:
            return decode
        first = int(np.searchsorted(decode, self._turn))
        chosen: Ints = np.roll(decode, -first)[: self.budget]
        self._turn = int(chosen[-1]) + 1
        return chosen

    def _num_decoding(self, decode: Ints) -> int:
        """How many rows decode in a step such as this one; of a pipeline some step may have none of them."""
        micro = self.micro_batches
        return len(decode) if micro is None else max(len(decode), micro.share(len(self.batch.due()[0])))

    def fills_pipeline(self) -> bool:
        """Whether there is something to compute that needs no token of a step in flight."""
        micro, (decode, prompts) = self.micro_batches, self.batch.due()
        return micro is not None and bool(len(prompts) or self.waiting or micro.has_ready(decode))

    def _with_blocks(self, decode: Ints, new_blocks: list[tuple[int, int, int]]) -> Ints:
        """Add a block where the next token needs one; rows that were preempted for it are left out."""
        batch = self.batch
        short = decode[batch.num_computed_tokens[decode] + 1 > batch.num_block_tokens[decode]]
        for row in short.tolist():
            if batch.ticket[row]:  # not preempted for one before it
                self._grow(batch.at(row), new_blocks)
        if len(short):
            decode = decode[batch.ticket[decode] > 0]
            new_blocks[:] = [entry for entry in new_blocks if batch.ticket[entry[0]]]
        return decode

    def _num_draft_tokens(self, decode: Ints, left: int, new_blocks: list[tuple[int, int, int]]) -> Ints:
        """How many drafts each of these rows may have beside its next token."""
        batch = self.batch
        want = (
            np.minimum(self.drafts, (batch.max_num_tokens[decode] - batch.num_known_tokens[decode] - 1) // 2)
            * batch.may_be_drafted[decode]
        )
        short = decode[batch.num_computed_tokens[decode] + 1 + want > batch.num_block_tokens[decode]]
        for row in short.tolist():
            if self.pool.free <= len(batch) * (1 + self.windows.tables):
                break
            self._grow(batch.at(row), new_blocks)
        want = np.minimum(want, batch.num_block_tokens[decode] - batch.num_computed_tokens[decode] - 1)
        num_draft_tokens: Ints = np.clip(left - (np.cumsum(want) - want), 0, want)
        return num_draft_tokens

    def _grow(self, sequence: Sequence, new_blocks: list[tuple[int, int, int]]) -> None:
        """One more block in each table, from whoever ranks last if none is free: that may be the sequence itself."""
        assert sequence.row is not None
        size = self.prefix.block_size
        end = int(self.batch.num_block_tokens[sequence.row]) // size + 1
        own = max(0, end - len(sequence.blocks))
        while self.pool.free < own + self.windows.missing(sequence, end):
            victim = max(self.batch.running(), key=self.waiting.rank)
            self.preempt(victim)
            if victim is sequence:
                return
        for block in (self.pool.allocate(own, after=sequence.blocks[-1]) or ()) if own else ():
            self.kv.grow(sequence.ref, len(sequence.blocks), block)
            new_blocks.append((sequence.row, len(sequence.blocks), block))
            sequence.blocks.append(block)
        new_blocks += self.windows.grow(sequence, end)
        self.batch.num_block_tokens[sequence.row] = end * size

    def preempt(self, sequence: Sequence) -> None:
        """Take row and blocks away; it waits, and is computed again from its log. Sampled tokens still come back."""
        self.preemptions += 1
        self.preempted.append(sequence.ref)
        self.batch.remove(sequence)
        self.release_blocks(sequence)
        self.waiting.add(sequence)

    def release_blocks(self, sequence: Sequence) -> None:
        self.kv.release(sequence.slot)
        self.pool.release(sequence.blocks)
        self.windows.release(sequence)
        sequence.blocks = []

    def _chunk(self, row: int, budget: int, new_blocks: list[tuple[int, int, int]]) -> int:
        """How many tokens a row in prefill computes: what is due and fits, up to where a snapshot is wanted, and as far
        as its tables of windows come.
        """
        batch, size = self.batch, self.prefix.block_size
        sequence, computed = batch.at(row), int(batch.num_computed_tokens[row])
        if sequence.whole:  # one that is longer than what is left for prompts is the only one of its step
            due = int(batch.num_known_tokens[row]) - computed
            return due if budget >= min(due, self._room) else 0
        due = min(budget, self.long_prefill, int(batch.num_known_tokens[row]) - computed)
        count = self.snapshots.cut(sequence, computed, due)
        if sequence.pictures.whole and self.encoder is not None:
            count = self.encoder.reach(sequence.pictures, computed, count, budget)
        if self.windows.tables:
            end = -(-(computed + count) // size)
            if self.windows.missing(sequence, end) > self.pool.free:
                end = self.windows.end(sequence) + self.pool.free // self.windows.tables
                count = max(0, min(count, end * size - computed))
                self._starved |= not count
            new_blocks += self.windows.grow(sequence, end)
            batch.num_block_tokens[row] = min(len(sequence.blocks), self.windows.end(sequence)) * size
        if sequence.pictures.all and self.encoder is not None:
            progress = sequence.encoded, sequence.looked
            count, (sequence.encoded, sequence.looked) = self.encoder.cut(
                sequence.pictures, progress, computed, count, row
            )
        return count

    def _prefill_chunks(self, budget: int, new_blocks: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
        """Rows that are in prefill, oldest first, with how much of each fits into the budget."""
        _, rows = self.batch.due()
        rows_by_age = sorted(rows.tolist(), key=lambda row: self.waiting.rank(self.batch.at(row)))
        chosen: list[int] = []
        counts: list[int] = []
        for row in rows_by_age:
            if budget <= 0:
                break
            if count := self._chunk(row, budget, new_blocks):
                chosen.append(row)
                counts.append(count)
                budget -= count
        return chosen, counts

    def _start_next(self, left: int, new: list[NewRow], new_blocks: list[tuple[int, int, int]]) -> int | None:
        """Move the first waiting sequence into a row, if it can be; one that cannot be cut, if it fits in."""
        sequence = self._next_waiting()
        if sequence is None or (sequence.whole and left < min(sequence.num_tokens, self._room)):
            return None
        return self._start(sequence, new, new_blocks)

    def _next_waiting(self) -> Sequence | None:
        but = self.loading | self.leaving if self.leaving else self.loading
        if self.adapters is not None:
            return self.adapters.first(self.waiting, but, begun=self.drains)
        return self.waiting.first_begun(but) if self.drains else self.waiting.first(but)

    def _start(self, sequence: Sequence, new: list[NewRow], new_blocks: list[tuple[int, int, int]]) -> int | None:
        """Move a waiting sequence into a row, if its blocks are there and its last token has come back."""
        if sequence.num_in_flight_tokens:
            return None
        size = self.prefix.block_size
        cached = self.prefix.match(sequence)
        needed = -(-sequence.num_tokens // size) - len(cached)
        computed = len(cached) * size
        self.pool.hold(cached)  # before allocating, which may evict what nobody holds
        self.windows.begin(sequence, len(cached))
        num_spare = min(NUM_SPARE_BLOCKS, -(-sequence.max_num_tokens // size) - len(cached) - needed)
        soon = self.windows.missing(sequence, -(-min(sequence.num_tokens, computed + self.budget) // size))
        blocks = None
        if needed + soon <= self.pool.free:
            blocks = self.pool.allocate(needed, after=cached[-1] if cached else None, num_spare=num_spare)
        if blocks is None:
            self.windows.release(sequence)
            self.pool.release(cached)
            return None
        self.waiting.remove(sequence.ref)
        sequence.blocks, sequence.encoded, sequence.looked = cached + blocks, 0, 0
        capacity = self.windows.end(sequence) if self.windows.tables else len(sequence.blocks)
        row = self.batch.place(sequence, computed, capacity * size, len(cached))
        self.prefix.count_start(sequence, computed)
        self.kv.hold(sequence.ref, sequence.blocks, computed)
        restored = self.snapshots.find(sequence.hashes[len(cached) - 1]) if cached and self.snapshots.needed else -1
        new.append(sequence.new_row(row, computed, restored))
        new_blocks += self.windows.entries(sequence, sequence.window_first)
        return row
