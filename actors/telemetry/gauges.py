"""The names of the board's gauge words, by kind of actor. Each word is written by its actor alone, read by anyone.

Those in a kind's KEPT count: a successor goes on from its predecessor's number, so that /metrics never falls.
Which kind has which: protocol/kinds.py.
"""

from __future__ import annotations

from enum import IntEnum


class SchedulerGauge(IntEnum):
    """Written by the scheduler after each turn."""

    RUNNING = 0
    WAITING = 1
    BLOCKS_TOTAL = 2
    BLOCKS_FREE = 3  # blocks that no sequence holds, cached ones included
    PREEMPTIONS = 4
    PREFIX_QUERIES = 5  # prompt tokens looked up
    PREFIX_HITS = 6  # prompt tokens found
    STEPS = 7
    GENERATED = 8  # tokens
    PROMPTED = 9  # prompt tokens of admitted sequences
    REJECTED = 10
    FINISHED = 11
    PLANNED = 12  # tokens that the worker was given to compute
    ENDED_STOP = 13  # sequences by how they ended; a stop string counts as a stop
    ENDED_LENGTH = 14
    ENDED_ABORT = 15
    ENDED_ERROR = 16
    SURVIVED_SCHEDULER = 17  # sequences that went on after the death of a scheduler
    SURVIVED_WORKER = 18
    DRAFTS = 19  # times that a row had drafts
    DRAFT_TOKENS = 20
    ACCEPTED_TOKENS = 21
    ACCEPTED_AT_0 = 22  # accepted as a row's first draft, and so on; what comes behind the eighth is not told apart
    ACCEPTED_AT_1 = 23
    ACCEPTED_AT_2 = 24
    ACCEPTED_AT_3 = 25
    ACCEPTED_AT_4 = 26
    ACCEPTED_AT_5 = 27
    ACCEPTED_AT_6 = 28
    ACCEPTED_AT_7 = 29
    PREFIX_RESETS = 30  # of the prefix cache, on an operator's word
    SNAPSHOTS = 31  # of states of sequences, that were made
    TIER_TOKENS = 32  # of prompts, whose KV was fetched from the tiers
    TIER_LATE = 33  # fetches that were waited for in vain
    TIER_WAITING = 34  # sequences that wait for what is fetched
    LINK_LOSSES = 35  # times that an engine on another machine was lost
    LINK_DELAY_US = 36  # there and back to it, microseconds
    WAITING_TOKENS = 37  # of prompts that wait for a row
    FORCED_TOKENS = 38  # that grammars left no choice of, and nobody drew


class FrontendGauge(IntEnum):
    """Written by each frontend."""

    CONNECTIONS = 0
    IN_FLIGHT = 1  # requests that are being answered
    REFUSED = 2  # requests for which no slot was free
    SURVIVED_FRONTEND = 3  # sequences that went on after the death of a frontend
    MEDIA_INBOX = 4  # bytes of pictures that wait for a media actor
    REALTIME = 5  # sessions that are open
    REALTIME_ANSWERS = 6  # responses and transcripts that were begun for them
    SESSIONS = 7  # of /open_session, that are open
    WARM = 8  # 1 once the warm-up request was answered
    SESSION_TURNS = 9  # that were kept
    RESPONSE_SOCKETS = 10  # WebSockets of /v1/responses that are open
    RESPONSE_SOCKET_ANSWERS = 11  # responses that were begun for them
    GRPC_CALLS = 12  # that are being answered


class WorkerGauge(IntEnum):
    """Written by the worker."""

    KV_TOKENS = 0  # how many tokens the KV memory holds
    STEPS = 1
    STEP_NS = 2  # what its steps took, together
    LATE_COMPILATIONS = 3  # kernels that were compiled while requests were running


class MediaGauge(IntEnum):
    """Written by each media actor."""

    WAITING = 0  # requests whose pictures and sounds are not ready
    USED = 1  # bytes of the memory for processed ones
    QUERIES = 2  # pictures and sounds that were looked up among these
    HITS = 3  # and found
    FETCHED = 4  # from addresses
    REFUSED = 5  # requests
    HELD = 6  # bytes of that memory that running requests have


class PorterGauge(IntEnum):
    """Written by the porter."""

    BLOCKS = 0  # that are kept in the host's memory
    MEMORY_BYTES = 1  # that they take
    FOLDER_BYTES = 2  # that all files in the folder take, as far as is known
    QUERIES = 3  # blocks that were asked for
    HITS_HOST = 4  # and were in the host's memory
    HITS_FOLDER = 5  # and were read from the folder
    STORED = 6  # blocks copied out of workers' memory
    WRITTEN = 7  # files
    WRITE_ERRORS = 8
    BAD_FILES = 9  # that were not what their names said
    EVICTED = 10  # files that had to make room
    FETCHING = 11  # fetches under way
    HITS_PEERS = 12  # blocks that other servers have given
    HITS_PLUGIN = 13  # that others' code has given
    PEER_ERRORS = 14  # times that another server was not reached, failed, or gave something else
    PLUGIN_ERRORS = 15  # calls of others' code that failed or took too long, and blocks that were not whole
    GIVEN = 16  # blocks given to other servers
    HELD = 17  # blocks that other servers are reading


class HeraldGauge(IntEnum):
    """Written by the herald."""

    BLOCKS = 0  # that it has told of, and that are there
    BATCHES = 1
    STORED = 2  # blocks
    REMOVED = 3
    CLEARED = 4  # times that all was told anew, or was gone
    REPLAYS = 5  # requests for batches


class ToolsGauge(IntEnum):
    """Written by the tools actor."""

    RUNNING = 0  # calls, and lists of tools
    CONNECTIONS = 1  # to MCP servers
    CALLS = 2
    FAILED = 3  # of them, those that no tool has answered


class BatcherGauge(IntEnum):
    """Written by the batcher; those of batches are 0 where another server's is at work on the folder."""

    WAITING = 0  # batches that are not begun
    RUNNING = 1
    LINES_RUNNING = 2  # that are being asked
    LINES_COMPLETED = 3
    LINES_FAILED = 4
    COMPLETED = 5  # batches
    FAILED = 6
    EXPIRED = 7
    CANCELLED = 8


class Http2Gauge(IntEnum):
    """Written by the supervisor, by what the relay of HTTP/2 tells it."""

    CONNECTIONS = 0  # of HTTP/2
    STREAMS = 1  # that are open
    REQUESTS = 2
    RESETS = 3  # streams that clients have reset
    BROKEN = 4  # streams whose frontend could not go on with them
    BAD = 5  # connections that were ended for what came by them


SCHEDULER_KEPT = frozenset[int](SchedulerGauge) - {
    *(SchedulerGauge.RUNNING, SchedulerGauge.WAITING, SchedulerGauge.BLOCKS_TOTAL, SchedulerGauge.BLOCKS_FREE),
    *(SchedulerGauge.STEPS, SchedulerGauge.TIER_WAITING, SchedulerGauge.LINK_DELAY_US),
    SchedulerGauge.WAITING_TOKENS,
}
FRONTEND_KEPT = frozenset[int](
    {
        *(FrontendGauge.REFUSED, FrontendGauge.SURVIVED_FRONTEND, FrontendGauge.REALTIME_ANSWERS, FrontendGauge.WARM),
        *(FrontendGauge.SESSION_TURNS, FrontendGauge.RESPONSE_SOCKET_ANSWERS),
    }
)
PORTER_KEPT = frozenset[int](
    {
        *(PorterGauge.QUERIES, PorterGauge.HITS_HOST, PorterGauge.HITS_FOLDER, PorterGauge.STORED),
        *(PorterGauge.WRITTEN, PorterGauge.WRITE_ERRORS, PorterGauge.BAD_FILES, PorterGauge.EVICTED),
        *(PorterGauge.HITS_PEERS, PorterGauge.HITS_PLUGIN, PorterGauge.PEER_ERRORS, PorterGauge.PLUGIN_ERRORS),
        PorterGauge.GIVEN,
    }
)
HERALD_KEPT = frozenset[int](HeraldGauge) - {HeraldGauge.BLOCKS}
MEDIA_KEPT = frozenset[int](MediaGauge) - {MediaGauge.WAITING, MediaGauge.USED, MediaGauge.HELD}
HTTP2_KEPT = frozenset[int](Http2Gauge) - {Http2Gauge.CONNECTIONS, Http2Gauge.STREAMS}
TOOLS_KEPT = frozenset[int]({ToolsGauge.CALLS, ToolsGauge.FAILED})
BATCHER_KEPT = frozenset[int](BatcherGauge) - {
    *(BatcherGauge.WAITING, BatcherGauge.RUNNING, BatcherGauge.LINES_RUNNING),
}
WORKER_KEPT = frozenset[int]({WorkerGauge.LATE_COMPILATIONS})
