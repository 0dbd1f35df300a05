"""What the page is told about twice a second. The frontend fills these structs; their fields are the page's names."""

from __future__ import annotations

import msgspec


class PageActor(msgspec.Struct, frozen=True):
    """One actor at one moment. What is not known is None."""

    name: str
    kind: str
    state: str  # starting, ready, draining, ended, parked, stopped (by a signal), hung, dead
    pid: int | None
    restarts: int
    up_s: float
    heartbeat_s: float | None  # age of the heartbeat
    waiting: int  # records in its mailbox
    received: int  # records since the server's start


class PageLane(msgspec.Struct, frozen=True, array_like=True):
    """One lane: what went from an actor to another. There are many, so they go as arrays."""

    source: str
    target: str
    sent: int | None  # records since the server's start; None where it moved too fast to be read
    waiting: int | None


class PageEngine(msgspec.Struct, frozen=True):
    """The scheduler's counts. A cell of KV memory stands for a block, or for some where there are many."""

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    generated: int
    prompted: int
    prefix_queries: int
    prefix_hits: int
    used: str  # a hex digit a cell: the share of its blocks that sequences hold, f is all
    cached: str  # and of those that are kept for a prefix


class PageFigures(msgspec.Struct, frozen=True):
    """The server at one moment."""

    at_s: float  # CLOCK_MONOTONIC
    actors: list[PageActor]
    lanes: list[PageLane]
    engine: PageEngine
    adapters: str = ""  # how many there are, and which are used; empty where the server takes none
