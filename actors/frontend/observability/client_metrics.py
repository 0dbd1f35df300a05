"""What clients see, counted: when a sequence's first text and its end were handed on, and what it was held up by.

Stamps keep a successor, a repeated request or text that comes again from being counted twice.
"""

from __future__ import annotations

import time

from actorserve.shm.table.stamps import Stamp, Stamps

from ...protocol.messages import FAILURES, Delta, Finish
from ...runtime.process import Context
from ...telemetry.gauges import FrontendGauge as Gauge
from ...telemetry.histograms import HOP
from ..requests.slots import SlotUse

# of these nobody waits for the end
FAILED = FAILURES | {Finish.ABORT}
HOPS = (  # from, to, what the first and what the second has written; the last one where text is streamed
    ("frontend", "renderer", None, Stamp.RENDER_BEGUN),
    ("renderer", "scheduler", Stamp.RENDERED, Stamp.ADMITTED),
    ("scheduler", "frontend", Stamp.FIRST_TOKEN, Stamp.FIRST_TOLD),
)


class ClientMetrics:
    """The counting of one frontend."""

    def __init__(self, context: Context) -> None:
        self._table = context.table
        self._stamps = Stamps(context.table)
        self._status = context.status
        named = context.histograms
        self._first = named["vllm:time_to_first_token_seconds"]
        self._end = named["vllm:e2e_request_latency_seconds"]
        self._choices = named["vllm:request_params_n"]
        self._longest = named["vllm:request_max_num_generation_tokens"]
        self._hops = [(named[f"{HOP}/{a}/{b}"], sent, came) for a, b, sent, came in HOPS]

    def delivered(self, use: SlotUse, delta: Delta) -> None:
        """Text, or the end, of a sequence is handed to those who read it."""
        if delta.tokens and not use.begun:
            use.begun = True
            self._count_first(use.ref, bool(delta.finish))
        if delta.finish:
            if delta.finish not in FAILED:
                self._count_end(use, delta.tokens)
            words = self._stamps.words(use.ref)  # now, since the slot may soon be another's
            for job in use.jobs:
                job.lives[use.index] = words

    def _count_first(self, ref: int, is_all: bool) -> None:
        """What comes in one piece waits for its end: then the first token's time is the scheduler's, and no hop's."""
        now = time.monotonic_ns()
        if not self._stamps.set_first(ref, Stamp.FIRST_TOLD, now):
            return
        arrival, get = self._table.arrival_ns(ref), self._stamps.get
        self._first.observe((get(ref, Stamp.FIRST_TOKEN) if is_all else now) - arrival)
        for histogram, sent, came in self._hops[:-1] if is_all else self._hops:
            start, end = arrival if sent is None else get(ref, sent), get(ref, came)
            if start and end:
                histogram.observe(end - start)

    def _count_end(self, use: SlotUse, tokens: int) -> None:
        now = time.monotonic_ns()
        if not self._stamps.set_first(use.ref, Stamp.END_TOLD, now):
            return
        self._end.observe(now - self._table.arrival_ns(use.ref))
        for job in use.jobs[:1]:
            width = len(job.params)
            first = use.index // width * width
            others = [choice for choice in job.choices[first : first + width] if choice.index != use.index]
            if all(choice.finish_reason for choice in others):  # its prompt is answered
                self._choices.observe(width)
                self._longest.observe(max([tokens, *(choice.tokens for choice in others)]))

    def in_flight(self, requests: int) -> None:
        """So many are being answered."""
        self._status.set_gauge(Gauge.IN_FLIGHT, requests)

    def refused(self, sequences: int) -> None:
        """A request for which no slots were free."""
        self._status.add(Gauge.REFUSED, sequences)

    def survived(self, sequences: int) -> None:
        """So many of a predecessor's go on."""
        self._status.add(Gauge.SURVIVED_FRONTEND, sequences)
