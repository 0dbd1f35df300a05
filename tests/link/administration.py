"""A link's part of what operators ask of an engine elsewhere, with all that it posts and sends."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from actorserve.actors.link.administration import LinkAdministration
from actorserve.actors.protocol.topics.calls import call_numbers
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.weights import WeightsRecord

CALL = next(call_numbers(0, 1))
SIZES = 1, 1, 1  # of a KV map


class Bench:
    """A link's part of it, with what it posts and sends."""

    def __init__(self, kv: KVMap | None = None) -> None:
        self.kv, self.fd = kv or KVMap.private(*SIZES), WeightsRecord.create(2)
        self.posted: list[Any] = []
        self.sent: list[Any] = []
        self.channel: Any = SimpleNamespace(send=self.sent.append)
        self.parked = self.others_will = False
        self.has_ended = True
        self.now = 100.0
        self.made = self.successor()

    def successor(self) -> LinkAdministration:
        context: Any = SimpleNamespace(
            files={"weights": self.fd},
            spec=SimpleNamespace(engine=1),
            log=logging.getLogger("test"),
            post=lambda name, message: self.posted.append(message),
        )
        asked = lambda: self.parked, lambda: self.has_ended, lambda: self.others_will
        return LinkAdministration(context, self.kv, "10.0.0.2:8100", *asked)


def state_of(bench: Bench) -> PauseState:
    return bench.kv.pause.state
