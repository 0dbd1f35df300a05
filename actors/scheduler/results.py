"""What a step has brought: tokens for the logs, full blocks for the prefix cache, ends, and measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..protocol.messages import Finish
from ..protocol.step import StepDone
from .batch import Ints
from .planner import Planned
from .policy.speculation import Drawn

if TYPE_CHECKING:
    from .scheduler import Scheduler

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]


def apply_results(scheduler: Scheduler, planned: Planned, done: StepDone) -> None:
    """Account for a step that has come back: computed tokens, sampled tokens, full blocks, ends."""
    _end_failed(scheduler, planned, done)
    drawn = Drawn(done, len(planned.refs))
    drawn.cut(planned.refs, scheduler.sequences)
    computed = _measure(scheduler, planned, drawn, done.seconds)
    batch = scheduler.batch
    scheduler.kv.prove()
    alive = batch.ticket[planned.rows] == planned.tickets
    rows = planned.rows[alive]
    missed = planned.room.copy()
    missed[planned.samples] -= drawn.counts - 1
    batch.confirm(rows, planned.counts[alive], missed[alive])
    scheduler.kv.confirm(batch.slot[rows], batch.generation[rows], batch.confirmed[rows])
    still = alive[planned.samples]
    _append_late(scheduler, planned, drawn, still)
    done_rows = _append(scheduler, planned.rows[planned.samples][still], *drawn.some(still))
    scheduler.recorder.stepped(computed)
    scheduler.prefix.offer(batch, rows)  # a token in no log is sampled again: its block must not be cached
    for row, token in done_rows:
        sequence = batch.at(row)
        sequence.generated = int(batch.generated[row])
        scheduler.finish_if_done(sequence, token)


def _end_failed(scheduler: Scheduler, planned: Planned, done: StepDone) -> None:
    """Rows whose grammar failed end without the token of this step, which a successor would take for an answer's."""
    if done.packed_failed:
        failed = np.isin(planned.rows[planned.samples], done.failed_rows)
        for index in np.flatnonzero(failed).tolist():
            scheduler.end(planned.refs[index], Finish.GRAMMAR)


def _measure(scheduler: Scheduler, planned: Planned, drawn: Drawn, seconds: float) -> int:
    """What it took; how many tokens it computed."""
    tokens = planned.tokens
    if drawn.speculated:
        tokens += int(drawn.drafted.sum())
        scheduler.speculation.count(drawn.counts, drawn.drafted)
    decoding = int((planned.counts - planned.room == 1).sum())
    scheduler.pace.observe(decoding, planned.tokens - decoding, seconds)
    if scheduler.limits.drafts and planned.tokens == len(planned.rows):  # no part of a prompt
        scheduler.speculation.cost.observe(tokens, seconds)
    return tokens


def _append(scheduler: Scheduler, rows: Ints, tokens: Tokens, counts: Ints) -> list[tuple[int, int]]:
    """Append `counts` tokens to each running row's log; returns the rows that may be done, and their last ones."""
    batch = scheduler.batch
    batch.in_flight[rows] -= counts
    batch.generated[rows] += counts
    lengths = batch.prompt[rows] + batch.generated[rows]
    scheduler.generated += len(tokens)
    scheduler.recorder.appending(batch.slot[rows])
    owners, positions, last = rows, lengths - 1, tokens
    if len(tokens) > len(rows):
        ends = np.cumsum(counts)
        owners, last = np.repeat(rows, counts), tokens[ends - 1]
        positions = np.arange(len(tokens)) + np.repeat(lengths - ends, counts)
    generated = positions + 1 - batch.prompt[owners]  # stored once for each of a row's tokens, in order
    scheduler.arrays.append_tokens(batch.slot[owners], positions, tokens, batch.generation[owners], generated)
    scheduler.moved.update(dict.fromkeys(batch.refs(rows)))
    done = (lengths >= batch.total[rows]) | batch.has_stop_ids[rows]
    for end in scheduler.end_tokens:
        done |= (last == end) & ~batch.ignore_eos[rows]
    return list(zip(rows[done].tolist(), last[done].tolist(), strict=True))


def _append_late(scheduler: Scheduler, planned: Planned, drawn: Drawn, still: np.ndarray) -> None:
    """Tokens of sequences that lost their row meanwhile: the preempted keep them, the finished do not."""
    room = planned.room[planned.samples]
    for index in np.flatnonzero(~still).tolist():
        sequence = scheduler.sequences.get(planned.refs[index])
        if sequence is None:
            continue
        tokens = drawn.of(index)
        sequence.in_flight -= 1 + int(room[index])
        sequence.generated += len(tokens)
        scheduler.generated += len(tokens)
        scheduler.recorder.appending(np.array([sequence.slot]))
        scheduler.table.append(sequence.ref, tokens)
        scheduler.moved[sequence.ref] = None
        scheduler.finish_if_done(sequence, tokens[-1])
