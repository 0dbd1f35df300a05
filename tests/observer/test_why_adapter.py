"""`actorserve why` names the load of its adapter that a request goes on with."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import msgspec

from actorserve.actors.observer.attach import Attached
from actorserve.actors.observer.requests import Requests
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState
from actorserve.shm.table.table import RequestTable
from tests.frontend.others import MODEL

NO_FILE = 1 << 20


def test_a_load_that_took_the_place_of_another() -> None:
    """Its files were written anew, and the one that the request came with is gone."""
    memory = Memory(System(Config(enable_lora=True, max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    system, offset = memory.system, memory.system.adapters_offset
    assert offset is not None
    table, registry = (
        RequestTable.attach(memory.segment, system.table_offset),
        AdapterRegistryWriter(memory.segment, offset),
    )
    old, new = (registry.add("given", path, AdapterState.READY) for path in ("/old", "/new"))
    assert old and new
    registry.set_state(old, AdapterState.FREE)
    ref = table.open_slot(0, msgspec.msgpack.encode(Generation(Sampling(1), adapter=old)), 1)
    description = SimpleNamespace(pid=os.getpid(), files={"answers": NO_FILE})
    found = Requests(cast(Attached, SimpleNamespace(segment=memory.segment, system=system, description=description)))
    assert [facts.adapter for facts in found.all()] == [f"unloaded meanwhile ({old})"]
    table.set_load(ref, new)
    assert [facts.adapter for facts in found.all()] == ["given"]
    memory.close()
