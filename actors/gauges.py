"""The names of the board's gauge words, by kind of actor. Each word is written by its actor alone, read by anyone."""

from __future__ import annotations

from enum import IntEnum


class SchedulerGauge(IntEnum):
    """Written by the scheduler after each turn; counters only grow within one incarnation."""

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


class FrontendGauge(IntEnum):
    """Written by each frontend."""

    CONNECTIONS = 0
    IN_FLIGHT = 1  # requests that are being answered


class WorkerGauge(IntEnum):
    """Written by the worker."""

    KV_TOKENS = 0  # how many tokens the KV memory holds
    STEPS = 1
