"""Engines of this machine that sleep by themselves are woken by a link that is asked."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

from actorserve.actors.link.idle import IdleEngines
from actorserve.shm.kv_map.layout import kv_map_bytes
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.sleep import Part, SleepState

SIZES = 1, 1, 1  # of a KV map


def test_those_that_fell_asleep_by_themselves_are_woken_and_no_others() -> None:
    """Neither one on another machine, nor one that an operator lets sleep, nor one that wakes already."""
    offsets = [engine * kv_map_bytes(*SIZES) for engine in range(3)]
    memory = mmap.mmap(-1, 3 * kv_map_bytes(*SIZES))
    context: Any = SimpleNamespace(
        segment=SimpleNamespace(map=memory),
        served=SimpleNamespace(engines=range(3)),
        system=SimpleNamespace(remote_engines=range(2, 3), kv_map_offsets=offsets),
    )
    idle, maps = IdleEngines(context), [KVMap(memory, offset, *SIZES) for offset in offsets]
    asleep = SleepState(1, Part.ALL, idle=True)
    for engine, state, sleeps in [
        (0, SleepState(1, Part.ALL), False),
        (2, asleep, False),
        (1, asleep, True),
        (1, SleepState(idle=True), False),
        (0, asleep, True),
    ]:
        maps[engine].sleep.state = state
        assert idle.sleep is sleeps
