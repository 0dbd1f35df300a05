"""When what happens to sequences: stamps in the request table, and the histograms made of them. Decides nothing.

A stamp stands before the word that makes it true is published (the tokens cursor), so that a successor never finds a
token without one. What is counted is counted once: a death may lose what its turn would have counted, never repeat it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from actorserve.shm.histogram import Histogram
from actorserve.shm.layout import LOW32
from actorserve.shm.segment import Segment
from actorserve.shm.table.layout import ACCEPTED, ARRIVAL, DRAFTED
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import RequestTable

from ...protocol.step import NewRow
from ...telemetry.histograms import histograms_bytes, open_histograms, scheduler_histograms
from ..batch import Ints
from ..sequence import Sequence

BETWEEN_TOKENS = "vllm:inter_token_latency_seconds"
STEP_TOKENS = "vllm:iteration_tokens_total"


class EndedSequence(Protocol):
    """What is counted of a sequence that has ended."""

    ref: int
    pools: bool
    num_prompt_tokens: int
    num_generated_tokens: int
    max_tokens: int


class RequestStats:
    """The scheduler's stamps and histograms; `ends` counts ended sequences, admitted or not, by their finish code."""

    def __init__(self, table: RequestTable, histograms: Mapping[str, Histogram] | None = None) -> None:
        """`histograms` are those that a predecessor has counted in; without them there are private ones."""
        if histograms is None:
            specs = scheduler_histograms(table.max_tokens)
            histograms = open_histograms(Segment.create(histograms_bytes(specs), "private histograms"), 0, specs)
        self._histograms = histograms
        self._between, self._step = histograms[BETWEEN_TOKENS], histograms[STEP_TOKENS]
        self._stamps, self._cached, self._given = Stamps(table), table.cached, table.given
        control = table.as_numpy().control.view(np.int64)
        self._arrivals, self._firsts = control[:, ARRIVAL], control[:, Stamp.FIRST_TOKEN]
        self._lasts = control[:, Stamp.LAST_TOKEN]
        self._drafts = control[:, DRAFTED : ACCEPTED + 1]
        self._begun = 0  # sequences whose first token the step has brought
        self.ends: Counter[int] = Counter()
        self.survived_scheduler = self.survived_worker = 0

    def admitted(self, ref: int, recovers: bool = True) -> bool:
        """A sequence is taken up; False if it was before: by a predecessor whose death it survives, or elsewhere."""
        if self._stamps.set_first(ref, Stamp.ADMITTED, time.monotonic_ns()):
            return True
        if recovers:
            self._stamps.set_back(ref, deaths=1)
            self.survived_scheduler += 1
        return False

    def planned(self, rows: list[NewRow]) -> None:
        """These get their first step, or go on after they had to wait."""
        if rows:
            now = time.monotonic_ns()
            for row in rows:
                self._stamps.set_first(row.ref, Stamp.SCHEDULED, now)

    def preempted(self, refs: list[int]) -> None:
        """These have lost their rows; the list is emptied."""
        if refs:
            for ref in refs:
                self._stamps.set_back(ref, preemptions=1)
            refs.clear()

    def stepped(self, computed: int, pools: bool = False) -> None:
        """A step has come back that computed so many, and what it sampled is appended: each prompt's first token, which
        nothing has computed yet, counts with those of the prompt. `pools`: there is none.
        """
        self._step.observe(computed if pools else computed + self._begun)
        self._begun = 0

    def appending(self, slots: Ints) -> int:
        """Each of these slots is given what a step sampled for it, now: the time is returned. All that came with one
        step was one wait.
        """
        now = time.monotonic_ns()
        lasts = self._lasts[slots]
        self._lasts[slots] = now
        begun = lasts >= self._arrivals[slots]
        if not begun.all():
            self._firsts[slots[~begun]] = now
            lasts = lasts[begun]
            self._begun += len(slots) - len(lasts)
        before = lasts.tolist()
        if before and before.count(before[0]) == len(before):  # nearly always: all were in the step before
            self._between.observe(now - before[0], len(before))
        else:
            for last, times in Counter(before).items():
                self._between.observe(now - last, times)
        return now

    def appending_again(self, slots: Ints, before: int) -> int:
        """The same where all of them were given something at `before`, for the last time."""
        now = time.monotonic_ns()
        self._lasts[slots] = now
        self._between.observe(now - before, len(slots))
        return now

    def drafted(self, slots: Ints, generations: Ints, drafted: Ints, accepted: Ints) -> None:
        """These slots had so many drafts in a step, of which so many were accepted."""
        uses = generations[:, None] << 32
        before = self._drafts[slots]
        before = np.where(before & ~LOW32 == uses, before, uses)
        self._drafts[slots] = before + np.stack([drafted, accepted], axis=1)

    def survived(self, running: list[Sequence]) -> None:
        """The worker has died, and these go on."""
        self.survived_elsewhere([sequence.ref for sequence in running])

    def survived_elsewhere(self, refs: Iterable[int]) -> None:
        """The same of those that another engine has now: to be said before it has."""
        for ref in refs:
            self._stamps.set_back(ref, deaths=1)
            self.survived_worker += 1

    def ended(self, sequence: EndedSequence) -> None:
        """The stages of a sequence that was admitted, as far as it has come."""
        get, ref = self._stamps.get, sequence.ref
        admitted, scheduled = get(ref, Stamp.ADMITTED), get(ref, Stamp.SCHEDULED)
        first, last = get(ref, Stamp.FIRST_TOKEN), get(ref, Stamp.LAST_TOKEN)
        self._count("prompt_tokens", sequence.num_prompt_tokens)
        generated = sequence.num_generated_tokens - self._given(ref)  # here
        self._count("generation_tokens", 0 if sequence.pools else generated)
        self._count("prefill_kv_computed_tokens", max(0, sequence.num_prompt_tokens - self._cached(ref)))
        self._count("params_max_tokens", 0 if sequence.pools else sequence.max_tokens)
        self._count("num_preemptions", self._stamps.preemptions(ref))
        if admitted and scheduled:
            self._count("queue_time_seconds", scheduled - admitted)
        if not (first and scheduled):
            return
        self._count("prefill_time_seconds", first - scheduled)
        self._count("decode_time_seconds", last - first)
        self._count("inference_time_seconds", last - scheduled)
        if generated > 1:
            self._count("time_per_output_token_seconds", (last - first) // (generated - 1))

    def _count(self, name: str, value: int) -> None:
        self._histograms["vllm:request_" + name].observe(value)
