"""What a step has brought: tokens for the logs, full blocks for the prefix cache, ends, and measures.

Owns the count of generated tokens; writes the token logs and their cursors. What was computed the planner confirms in
the KV map before, and a block is offered to the prefix cache behind its tokens.
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.table.table import RequestTable

from ..protocol.messages import Finish
from ..protocol.step import StepDone
from .batch import COMPUTED, CONFIRMED, GENERATED, IN_FLIGHT, KNOWN, Bools, Ints, RunningBatch
from .lifecycle import Lifecycle
from .metrics.request_stats import RequestStats
from .planned_step import PlannedStep
from .planner import Planner
from .policy.chunk_size import ChunkSizePolicy
from .policy.speculation import SampledTokens, Speculation, num_beside

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]
LONG_S = 0.005  # a step of which each is measured; of shorter ones that are alike, so many as one in ...
MEASURED = 4


class SteadyResults:
    """All rows of a batch, while a step of them comes back that was planned again: each draws one token.

    By row, as the tokens in the log are: `words` are what the KV map says of it, its tokens cursor (both as they are
    stored, with the generation), and the position of its next token.
    """

    def __init__(self, batch: RunningBatch, planned: PlannedStep, ends: list[int], block_size: int) -> None:
        rows, room = planned.rows, planned.room
        self.planned = planned
        self.slots = batch.slot[rows]
        self.last_ns = 0  # when all of them got the last one; 0: not known
        self.steps = 0
        self._progress, self._span = batch.progress, batch.span(rows)
        self._change = np.zeros(batch.progress.shape[1], np.int64)
        self._change[[COMPUTED, KNOWN, CONFIRMED, GENERATED, IN_FLIGHT]] = -room, -room, 1, 1, -1 - room
        generations = batch.generation[rows] << 32
        lengths = batch.num_prompt_tokens[rows] + batch.num_generated_tokens[rows]
        counts = batch.num_confirmed_tokens[rows]
        self._words = np.stack([generations | counts, generations | batch.num_generated_tokens[rows], lengths - 1])
        self.computed: Ints = self._words[0]  # what the KV map says
        self.cursors: Ints = self._words[1]
        self.positions: Ints = self._words[2]  # of the tokens that a step has brought
        self._end = int((batch.max_num_tokens[rows] - lengths).min())  # steps until one is as long as it may be
        self._size = block_size
        self._next_block = int((block_size - counts % block_size).min())  # steps until one has a full block more
        stops = {token for row in rows[batch.has_stop_ids[rows]].tolist() for token in batch.at(row).stop_ids}
        self.ends = stops if batch.ignore_eos[rows].all() else stops.union(ends)

    def come_back(self) -> None:
        """Another step has."""
        self.steps += 1
        self._progress[self._span] += self._change
        self._words += 1

    @property
    def may_be_long(self) -> bool:
        """Whether a row may be as long as it may be."""
        return self.steps >= self._end

    def has_full_block(self) -> bool:
        """Whether one of the rows has a full block more than after the step before."""
        if self.steps < self._next_block:
            return False
        self._next_block = self.steps + self._size - int((self._progress[self._span, CONFIRMED] % self._size).max())
        return True


class Results:
    """Applies steps that have come back to the sequences of `lifecycle`."""

    def __init__(
        self,
        table: RequestTable,
        lifecycle: Lifecycle,
        stats: RequestStats,
        speculation: Speculation,
        chunk_size: ChunkSizePolicy,
        pools: bool = False,
    ) -> None:
        """`pools`: the token with which a sequence ends is none, and not counted."""
        self.generated = 0  # tokens
        self._pools = pools
        self._table, self.arrays = table, table.as_numpy()
        self._lifecycle = lifecycle
        self._stats = stats
        self._speculation, self._chunk_size = speculation, chunk_size
        self._steady: SteadyResults | None = None  # while steps come back that were planned again

    def apply(self, planner: Planner, planned: PlannedStep, done: StepDone) -> None:
        """Account for a step of this planner that has come back: computed and sampled tokens, full blocks, ends."""
        if planned.version == planner.batch.version and not (done.packed_drawn or done.packed_failed):
            self._apply_again(planner, planned, done)
            return
        self._steady = None
        self._end_failed(planner.batch, planned, done)
        drawn = SampledTokens(done, len(planned.refs))
        drawn.cut(planned.refs, self._lifecycle.sequences)
        computed = self._measure(planned, drawn, done.seconds)
        batch = planner.batch
        alive = planner.confirm(planned, drawn.counts)
        still = alive[planned.samples]
        self._append_late(planned, drawn, still)
        if drawn.speculated:
            self._count_drafts(batch, planned.rows[planned.samples][still], drawn.drafted[still], drawn.counts[still])
        done_rows = self._append(batch, planned.rows[planned.samples][still], *drawn.some(still))
        self._stats.stepped(computed, self._pools)
        planner.prefix.offer(batch, planned.rows[alive])  # a token in no log is sampled again: not to be cached before
        planner.prefix.settle(batch, planned.rows[alive], planned.saves)
        self._finish(batch, done_rows)

    def _apply_again(self, planner: Planner, planned: PlannedStep, done: StepDone) -> None:
        """The same for a step that was planned again, and in which every row drew one token.

        The stores are those of `apply`, in their order: a successor finds what it would have found.
        """
        batch, steady, size = planner.batch, self._steady, planner.prefix.block_size
        if steady is None or steady.planned is not planned:
            steady = self._steady = SteadyResults(batch, planned, self._lifecycle.end_tokens, size)
        tokens = done.tokens
        assert len(tokens) == len(planned.rows), f"step {done.step}: {len(tokens)} tokens of {len(planned.rows)} rows"
        steady.come_back()
        self._measure_again(planned, done.seconds, steady.steps)
        planner.confirm_again(planned, steady.slots, steady.computed)
        self.generated += len(tokens)
        stats, before = self._stats, steady.last_ns
        steady.last_ns = stats.appending_again(steady.slots, before) if before else stats.appending(steady.slots)
        self.arrays.append_words(steady.slots, steady.positions, tokens, steady.cursors)
        self._lifecycle.have_moved(planned.refs)
        stats.stepped(planned.tokens)
        if steady.has_full_block():
            planner.prefix.offer(batch, planned.rows)
        if steady.may_be_long or not steady.ends.isdisjoint(tokens.tolist()):
            self._finish(batch, self._done_rows(batch, planned.rows, steady.positions + 1, tokens))

    def _finish(self, batch: RunningBatch, done_rows: list[tuple[int, int]]) -> None:
        """These rows may be done; with the last token of each."""
        for row, token in done_rows:
            sequence = batch.at(row)
            sequence.num_generated_tokens = int(batch.num_generated_tokens[row])
            self._lifecycle.finish_if_done(sequence, token)

    def _measure_again(self, planned: PlannedStep, seconds: float, steps: int) -> None:
        """What it took, where `steps` of its kind have come back."""
        if seconds >= LONG_S or steps % MEASURED == 0:
            self._chunk_size.observe(planned.decoding, 0, seconds)
        if self._speculation.most:
            self._speculation.observe_without(planned.decoding, planned.drafts_on, seconds)

    def _end_failed(self, batch: RunningBatch, planned: PlannedStep, done: StepDone) -> None:
        """Rows that failed end without this step's token: a successor would take it for one of the answer. Nor is what
        was computed of them confirmed or cached, which a picture may spoil before there is a token.
        """
        if not done.packed_failed:
            return
        still = planned.rows[batch.still(planned.rows, planned.tickets)]
        refs = dict(zip(still.tolist(), batch.refs(still), strict=True))
        refs |= zip(planned.rows[planned.samples].tolist(), planned.refs, strict=True)
        for failed, code in (
            (done.failed_rows, Finish.GRAMMAR),
            (done.unseen_rows, Finish.MEDIA),
            (done.plugin_rows, Finish.PLUGIN),
        ):
            for row in failed.tolist():
                if row in refs:
                    self._lifecycle.end(refs[row], code)

    def _measure(self, planned: PlannedStep, drawn: SampledTokens, seconds: float) -> int:
        """What it took; how many tokens it computed."""
        tokens = planned.tokens
        if drawn.speculated:
            tokens += num_beside(drawn.counts, drawn.drafted)
            self._speculation.count(drawn.counts, drawn.drafted)
        self._chunk_size.observe(planned.decoding, planned.tokens - planned.decoding, seconds, planned.encoded)
        if self._speculation.most and planned.tokens == len(planned.rows):  # no part of a prompt
            rows, on = len(planned.rows), planned.drafts_on
            self._speculation.observe(rows, on, drawn.counts, drawn.drafted, seconds)
        return tokens

    def _count_drafts(self, batch: RunningBatch, rows: Ints, drafted: Ints, counts: Ints) -> None:
        """Of each row: tokens beside its next one that no draft stood for are no drafts."""
        accepted = np.where(drafted > 0, counts - 1, 0)
        self._stats.drafted(batch.slot[rows], batch.generation[rows], drafted, accepted)

    def _append(self, batch: RunningBatch, rows: Ints, tokens: Tokens, counts: Ints) -> list[tuple[int, int]]:
        """Append `counts` tokens to each running row's log; returns the rows that may be done, and their last ones."""
        batch.num_in_flight_tokens[rows] -= counts
        batch.num_generated_tokens[rows] += counts
        lengths = batch.num_prompt_tokens[rows] + batch.num_generated_tokens[rows]
        self.generated += 0 if self._pools else len(tokens)
        self._stats.appending(batch.slot[rows])
        owners, positions, last = rows, lengths - 1, tokens
        if len(tokens) > len(rows):
            ends = np.cumsum(counts)
            owners, last = np.repeat(rows, counts), tokens[ends - 1]
            positions = np.arange(len(tokens)) + np.repeat(lengths - ends, counts)
        generated = positions + 1 - batch.num_prompt_tokens[owners]  # stored once for each of a row's tokens, in order
        self.arrays.append_tokens(batch.slot[owners], positions, tokens, batch.generation[owners], generated)
        self._lifecycle.have_moved(batch.refs(rows))
        return self._done_rows(batch, rows, lengths, last)

    def _done_rows(self, batch: RunningBatch, rows: Ints, lengths: Ints, last: Tokens) -> list[tuple[int, int]]:
        """The rows of these that may be done, by what their logs' lengths and last tokens are."""
        done = (lengths >= batch.max_num_tokens[rows]) | batch.has_stop_ids[rows]
        for end in self._lifecycle.end_tokens:
            done |= (last == end) & ~batch.ignore_eos[rows]
        return list(zip(rows[done].tolist(), last[done].tolist(), strict=True))

    def _append_late(self, planned: PlannedStep, drawn: SampledTokens, still: Bools) -> None:
        """Tokens of sequences that lost their row meanwhile: the preempted keep them, the finished do not."""
        room = planned.num_draft_tokens[planned.samples]
        for index in np.flatnonzero(~still).tolist():
            sequence = self._lifecycle.sequences.get(planned.refs[index])
            if sequence is None:
                continue
            tokens = drawn.of(index)
            sequence.num_in_flight_tokens -= 1 + int(room[index])
            sequence.num_generated_tokens += len(tokens)
            self.generated += 0 if self._pools else len(tokens)
            self._stats.appending(np.array([sequence.slot]))
            self._table.append(sequence.ref, tokens)
            self._lifecycle.have_moved([sequence.ref])
            self._lifecycle.finish_if_done(sequence, tokens[-1])
