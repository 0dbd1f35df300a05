"""What a step has brought: tokens for the logs, full blocks for the prefix cache, ends, and measures.

Owns the count of generated tokens; writes the token logs and their cursors. What was computed the planner confirms in
the KV map before, and a block is offered to the prefix cache behind its tokens.
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.table.table import RequestTable

from ..protocol.messages import Finish
from ..protocol.step import StepDone
from .batch import Bools, Ints, RunningBatch
from .lifecycle import Lifecycle
from .metrics.request_stats import RequestStats
from .planner import PlannedStep, Planner
from .policy.chunk_size import ChunkSizePolicy
from .policy.speculation import SampledTokens, Speculation

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]


class Results:
    """Applies steps that have come back to the sequences of `lifecycle`."""

    def __init__(
        self,
        table: RequestTable,
        lifecycle: Lifecycle,
        stats: RequestStats,
        speculation: Speculation,
        chunk_size: ChunkSizePolicy,
    ) -> None:
        self.generated = 0  # tokens
        self._table, self.arrays = table, table.as_numpy()
        self._lifecycle = lifecycle
        self._stats = stats
        self._speculation, self._chunk_size = speculation, chunk_size

    def apply(self, planner: Planner, planned: PlannedStep, done: StepDone) -> None:
        """Account for a step of this planner that has come back: computed and sampled tokens, full blocks, ends."""
        self._end_failed(planned, done)
        drawn = SampledTokens(done, len(planned.refs))
        drawn.cut(planned.refs, self._lifecycle.sequences)
        computed = self._measure(planned, drawn, done.seconds)
        batch = planner.batch
        alive = planner.confirm(planned, drawn.counts)
        still = alive[planned.samples]
        self._append_late(planned, drawn, still)
        done_rows = self._append(batch, planned.rows[planned.samples][still], *drawn.some(still))
        self._stats.stepped(computed)
        planner.prefix.offer(batch, planned.rows[alive])  # a token in no log is sampled again: not to be cached before
        planner.prefix.settle(batch, planned.rows[alive], planned.saves)
        for row, token in done_rows:
            sequence = batch.at(row)
            sequence.num_generated_tokens = int(batch.num_generated_tokens[row])
            self._lifecycle.finish_if_done(sequence, token)

    def _end_failed(self, planned: PlannedStep, done: StepDone) -> None:
        """Rows whose grammar failed end without this step's token: a successor would take it for one of the answer."""
        if done.packed_failed:
            failed = np.isin(planned.rows[planned.samples], done.failed_rows)
            for index in np.flatnonzero(failed).tolist():
                self._lifecycle.end(planned.refs[index], Finish.GRAMMAR)

    def _measure(self, planned: PlannedStep, drawn: SampledTokens, seconds: float) -> int:
        """What it took; how many tokens it computed."""
        tokens = planned.tokens
        if drawn.speculated:
            tokens += int(drawn.drafted.sum())
            self._speculation.count(drawn.counts, drawn.drafted)
        decoding = int((planned.counts - planned.num_draft_tokens == 1).sum())
        self._chunk_size.observe(decoding, planned.tokens - decoding, seconds)
        if self._speculation.most and planned.tokens == len(planned.rows):  # no part of a prompt
            rows, on = len(planned.rows), planned.drafts_on
            self._speculation.observe(rows, on, drawn.counts, drawn.drafted, seconds)
        return tokens

    def _append(self, batch: RunningBatch, rows: Ints, tokens: Tokens, counts: Ints) -> list[tuple[int, int]]:
        """Append `counts` tokens to each running row's log; returns the rows that may be done, and their last ones."""
        batch.num_in_flight_tokens[rows] -= counts
        batch.num_generated_tokens[rows] += counts
        lengths = batch.num_prompt_tokens[rows] + batch.num_generated_tokens[rows]
        self.generated += len(tokens)
        self._stats.appending(batch.slot[rows])
        owners, positions, last = rows, lengths - 1, tokens
        if len(tokens) > len(rows):
            ends = np.cumsum(counts)
            owners, last = np.repeat(rows, counts), tokens[ends - 1]
            positions = np.arange(len(tokens)) + np.repeat(lengths - ends, counts)
        generated = positions + 1 - batch.num_prompt_tokens[owners]  # stored once for each of a row's tokens, in order
        self.arrays.append_tokens(batch.slot[owners], positions, tokens, batch.generation[owners], generated)
        self._lifecycle.have_moved(batch.refs(rows))
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
            self.generated += len(tokens)
            self._stats.appending(np.array([sequence.slot]))
            self._table.append(sequence.ref, tokens)
            self._lifecycle.have_moved([sequence.ref])
            self._lifecycle.finish_if_done(sequence, tokens[-1])
