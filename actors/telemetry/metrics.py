"""The gauges that `/metrics` shows as they are, under vLLM's names where the thing is the same.

A new one is a line here. Which kind of actor has them: protocol/kinds.py. Knows no actor.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from .gauges import FrontendGauge, MediaGauge
from .gauges import SchedulerGauge as Gauge


class Metric(NamedTuple):
    """A gauge, and its name and help in `/metrics`."""

    type: Literal["gauge", "counter"]
    name: str
    help: str
    gauge: IntEnum


SCHEDULER_METRICS = (
    Metric("gauge", "vllm:num_requests_running", "Sequences in the running batch", Gauge.RUNNING),
    Metric("gauge", "vllm:num_requests_waiting", "Sequences that wait to run", Gauge.WAITING),
    Metric("counter", "vllm:prompt_tokens", "Prompt tokens of admitted sequences", Gauge.PROMPTED),
    Metric("counter", "vllm:generation_tokens", "Generated tokens", Gauge.GENERATED),
    Metric("counter", "vllm:prompt_tokens_cached", "Prompt tokens that were not computed", Gauge.PREFIX_HITS),
    Metric(
        "counter",
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        Gauge.PREFIX_QUERIES,
    ),
    Metric("counter", "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", Gauge.PREFIX_HITS),
    Metric("counter", "actorserve:prefix_cache_resets", "Times that the prefix cache was reset", Gauge.PREFIX_RESETS),
    Metric(
        "counter",
        "actorserve:state_snapshots",
        "Snapshots of states that prefixes can be gone on behind, of models that keep such",
        Gauge.SNAPSHOTS,
    ),
    Metric(
        "counter",
        "vllm:num_preemptions",
        "Times that a sequence lost its blocks and was computed again",
        Gauge.PREEMPTIONS,
    ),
    Metric("counter", "vllm:spec_decode_num_drafts", "Times that drafts of a sequence were tried", Gauge.DRAFTS),
    Metric("counter", "vllm:spec_decode_num_draft_tokens", "Tokens that were drafted", Gauge.DRAFT_TOKENS),
    Metric(
        "counter",
        "vllm:spec_decode_num_accepted_tokens",
        "Drafted tokens that were accepted",
        Gauge.ACCEPTED_TOKENS,
    ),
)
FRONTEND_METRICS = (
    Metric("gauge", "actorserve:media_inbox_bytes", "Pictures that wait to be processed", FrontendGauge.MEDIA_INBOX),
)
MEDIA_METRICS = (
    Metric("counter", "vllm:mm_cache_queries", "Pictures and sounds sought among processed ones", MediaGauge.QUERIES),
    Metric("counter", "vllm:mm_cache_hits", "Pictures and sounds found among processed ones", MediaGauge.HITS),
    Metric("gauge", "actorserve:media_requests_waiting", "Requests whose pictures are not ready", MediaGauge.WAITING),
    Metric("gauge", "actorserve:media_memory_bytes", "Memory that processed pictures and sounds take", MediaGauge.USED),
    Metric("gauge", "actorserve:media_memory_held_bytes", "The part of it that running requests have", MediaGauge.HELD),
    Metric("counter", "actorserve:media_fetched", "Pictures and sounds fetched from addresses", MediaGauge.FETCHED),
    Metric("counter", "actorserve:media_refused", "Requests refused for their pictures or sounds", MediaGauge.REFUSED),
)
