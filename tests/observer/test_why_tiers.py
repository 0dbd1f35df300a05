"""`actorserve why` names the porter while blocks are fetched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from actorserve.actors.observer.requests import Facts
from actorserve.actors.observer.why.scene import Scene
from actorserve.actors.observer.why.waits import _of_tiers
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.topology import System
from actorserve.actors.telemetry.snapshot import ActorStatus, Snapshot
from tests.frontend.others import MODEL

FACTS = cast(Facts, SimpleNamespace(engine=0))


def status(name: str, **gauges: int) -> ActorStatus:
    said = (name, name, 1, "ready", "", 1.0, 0, 0.1, 0, 0, None, 0, 0, 0, 0, 0.0, 1, 1)
    return ActorStatus(*said, gauges)


def scene(waiting: int) -> Scene:
    actors = [status("scheduler", tier_waiting=waiting), status("porter")]
    known = SimpleNamespace(actors=actors, actor={one.name: one for one in actors}.__getitem__)
    system = System(Config(kv_offload="host:4Mi", max_num_seqs=2, max_num_queued_reqs=2), MODEL)
    return Scene(system, cast(Snapshot, known), [], 0)


def test_who_waits_for_blocks() -> None:
    (said,) = _of_tiers(scene(3), FACTS, "waiting for its first step")
    assert said.startswith("KV blocks, if it is among the 3 who wait for some: porter")
    assert not _of_tiers(scene(0), FACTS, "waiting for its first step")
    assert not _of_tiers(scene(3), FACTS, "waiting to go on")
