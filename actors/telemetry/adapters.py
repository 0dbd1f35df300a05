"""What is told of the adapters of --enable-lora, by whoever shows the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from actorserve.shm.adapters.registry import AdapterRegistry, AdapterState, RegisteredAdapter
from actorserve.shm.segment import Segment

from ..protocol.topology import System

MOST_NAMED = 32


def registry_of(system: System, segment: Segment) -> AdapterRegistry | None:
    """Where they stand, of a server that takes some."""
    if system.adapters_offset is None:
        return None
    return AdapterRegistry(segment, system.adapters_offset, len(system.engines))


def adapters_words(seen: Sequence[RegisteredAdapter]) -> str:
    """How many there are, and which of them have sequences, those with most first."""
    states = Counter(one.state for one in seen)
    counts = [f"{states[state]} {state.name.lower()}" for state in AdapterState if states[state]]
    held = sorted((one for one in seen if one.running or one.waiting), key=lambda one: -one.running - one.waiting)
    users = [f"{one.name} {one.running} running, {one.waiting} waiting" for one in held[:MOST_NAMED]]
    more = [f"{len(held) - MOST_NAMED} more in use"] if len(held) > MOST_NAMED else []
    return "; ".join([", ".join(counts) or "none", *users, *more])
