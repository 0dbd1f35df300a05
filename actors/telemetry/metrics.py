"""The gauges that `/metrics` shows as they are, under vLLM's names where the thing is the same.

A new one is a line here. Which kind of actor has them: protocol/kinds.py. Knows no actor.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from .gauges import BatcherGauge, FrontendGauge, HeraldGauge, Http2Gauge, MediaGauge, PorterGauge, ToolsGauge
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
    Metric(
        "counter",
        "actorserve:forced_tokens",
        "Tokens that grammars left no choice of, and that were not drawn",
        Gauge.FORCED_TOKENS,
    ),
    Metric("gauge", "actorserve:waiting_tokens", "Tokens of prompts that wait for a row", Gauge.WAITING_TOKENS),
    Metric("counter", "actorserve:engine_losses", "Times that an engine elsewhere was lost", Gauge.LINK_LOSSES),
    Metric("gauge", "actorserve:engine_delay_microseconds", "The way to one and back", Gauge.LINK_DELAY_US),
    Metric("counter", "actorserve:kv_tier_tokens", "Tokens whose KV came from the tiers", Gauge.TIER_TOKENS),
    Metric("gauge", "actorserve:kv_tier_waiting", "Sequences that wait for KV blocks of the tiers", Gauge.TIER_WAITING),
    Metric("counter", "actorserve:kv_tier_late", "Fetches from the tiers that took too long", Gauge.TIER_LATE),
)
FRONTEND_METRICS = (
    Metric("gauge", "actorserve:media_inbox_bytes", "Pictures that wait to be processed", FrontendGauge.MEDIA_INBOX),
    Metric("gauge", "actorserve:realtime_sessions", "Sessions of /v1/realtime that are open", FrontendGauge.REALTIME),
    Metric(
        "counter",
        "actorserve:realtime_answers",
        "Responses and transcripts begun for sessions of /v1/realtime",
        FrontendGauge.REALTIME_ANSWERS,
    ),
    Metric(
        "gauge",
        "actorserve:response_sockets",
        "WebSockets of /v1/responses that are open",
        FrontendGauge.RESPONSE_SOCKETS,
    ),
    Metric(
        "counter",
        "actorserve:response_socket_answers",
        "Responses begun over WebSockets of /v1/responses",
        FrontendGauge.RESPONSE_SOCKET_ANSWERS,
    ),
    Metric("gauge", "actorserve:sessions", "Sessions of /open_session that are open", FrontendGauge.SESSIONS),
    Metric("counter", "actorserve:session_turns", "Turns of sessions that were kept", FrontendGauge.SESSION_TURNS),
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
PORTER_METRICS = (
    Metric("gauge", "actorserve:kv_tier_blocks", "KV blocks kept in the host's memory", PorterGauge.BLOCKS),
    Metric("gauge", "actorserve:kv_tier_memory_bytes", "Memory that they take", PorterGauge.MEMORY_BYTES),
    Metric("gauge", "actorserve:kv_tier_folder_bytes", "Files of the folder for KV blocks", PorterGauge.FOLDER_BYTES),
    Metric("counter", "actorserve:kv_tier_queries", "KV blocks asked for", PorterGauge.QUERIES),
    Metric("counter", "actorserve:kv_tier_hits_host", "KV blocks found in the host's memory", PorterGauge.HITS_HOST),
    Metric("counter", "actorserve:kv_tier_hits_folder", "KV blocks read from the folder", PorterGauge.HITS_FOLDER),
    Metric("counter", "actorserve:kv_tier_stored", "KV blocks copied out of workers' memory", PorterGauge.STORED),
    Metric("counter", "actorserve:kv_tier_written", "Files of KV blocks that were written", PorterGauge.WRITTEN),
    Metric("counter", "actorserve:kv_tier_write_errors", "Files that could not be", PorterGauge.WRITE_ERRORS),
    Metric("counter", "actorserve:kv_tier_bad_files", "Files that held something else", PorterGauge.BAD_FILES),
    Metric("counter", "actorserve:kv_tier_evicted", "Files removed to make room", PorterGauge.EVICTED),
    Metric("gauge", "actorserve:kv_tier_fetching", "Fetches under way", PorterGauge.FETCHING),
    Metric("counter", "actorserve:kv_tier_hits_peers", "KV blocks that other servers gave", PorterGauge.HITS_PEERS),
    Metric("counter", "actorserve:kv_tier_hits_plugin", "KV blocks that a plugin gave", PorterGauge.HITS_PLUGIN),
    Metric("counter", "actorserve:kv_tier_peer_errors", "Failures of other servers to give", PorterGauge.PEER_ERRORS),
    Metric("counter", "actorserve:kv_tier_plugin_errors", "Failures of the plugin", PorterGauge.PLUGIN_ERRORS),
    Metric("counter", "actorserve:kv_tier_given", "KV blocks given to other servers", PorterGauge.GIVEN),
    Metric("gauge", "actorserve:kv_tier_held", "KV blocks that other servers are reading", PorterGauge.HELD),
)
HERALD_METRICS = (
    Metric("gauge", "actorserve:kv_events_blocks", "KV blocks that listeners know of", HeraldGauge.BLOCKS),
    Metric("counter", "actorserve:kv_events_batches", "Batches of KV events that were sent", HeraldGauge.BATCHES),
    Metric("counter", "actorserve:kv_events_stored", "KV blocks that were told to be there", HeraldGauge.STORED),
    Metric("counter", "actorserve:kv_events_removed", "KV blocks that were told to be gone", HeraldGauge.REMOVED),
    Metric("counter", "actorserve:kv_events_cleared", "Times that all KV blocks were", HeraldGauge.CLEARED),
    Metric("counter", "actorserve:kv_events_replays", "Times that events were asked for again", HeraldGauge.REPLAYS),
)
TOOLS_METRICS = (
    Metric("gauge", "actorserve:tools_running", "Tool calls and lists that are waited for", ToolsGauge.RUNNING),
    Metric("gauge", "actorserve:tools_connections", "Connections to MCP servers", ToolsGauge.CONNECTIONS),
    Metric("counter", "actorserve:tools_calls", "Calls of tools of MCP servers", ToolsGauge.CALLS),
    Metric("counter", "actorserve:tools_failed", "Calls that no tool has answered", ToolsGauge.FAILED),
)
BATCHER_METRICS = (
    Metric("gauge", "actorserve:batches_waiting", "Batches that are not begun", BatcherGauge.WAITING),
    Metric("gauge", "actorserve:batches_running", "Batches whose lines are being answered", BatcherGauge.RUNNING),
    Metric("gauge", "actorserve:batch_lines_running", "Their lines that are being asked", BatcherGauge.LINES_RUNNING),
    Metric("counter", "actorserve:batch_lines_completed", "Lines answered with 200", BatcherGauge.LINES_COMPLETED),
    Metric("counter", "actorserve:batch_lines_failed", "Lines in files of errors", BatcherGauge.LINES_FAILED),
    Metric("counter", "actorserve:batches_completed", "Batches that came to their end", BatcherGauge.COMPLETED),
    Metric("counter", "actorserve:batches_failed", "Batches that could not be begun", BatcherGauge.FAILED),
    Metric("counter", "actorserve:batches_expired", "Batches whose time was over", BatcherGauge.EXPIRED),
    Metric("counter", "actorserve:batches_cancelled", "Batches that were cancelled", BatcherGauge.CANCELLED),
)
HTTP2_METRICS = (
    Metric("gauge", "actorserve:http2_connections", "Connections over HTTP/2", Http2Gauge.CONNECTIONS),
    Metric("gauge", "actorserve:http2_streams", "Their requests that are being answered", Http2Gauge.STREAMS),
    Metric("counter", "actorserve:http2_requests", "Requests over HTTP/2", Http2Gauge.REQUESTS),
    Metric("counter", "actorserve:http2_resets", "Requests over HTTP/2 that clients broke off", Http2Gauge.RESETS),
    Metric("counter", "actorserve:http2_broken", "Requests over HTTP/2 that no frontend could end", Http2Gauge.BROKEN),
    Metric("counter", "actorserve:http2_bad", "Connections ended for breaking HTTP/2's rules", Http2Gauge.BAD),
)
