"""Puts two kinds of actors into the registry of every Python that is started with this folder in PYTHONPATH, as entries
in protocol/kinds.py would: no file of the server knows of them.
"""

from __future__ import annotations

from enum import IntEnum

from actorserve.actors.protocol.actor_kind import ActorKind, Sends
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.protocol.messages import Message
from actorserve.actors.telemetry.histograms import HistogramSpec
from actorserve.actors.telemetry.metrics import Metric


class Tick(Message, frozen=True, tag=90):
    """Toy → itself, and it counts."""

    number: int


class Tock(Message, frozen=True, tag=91):
    """Nobody says this; a kind takes a union of messages."""


class ToyGauge(IntEnum):
    TICKS = 0
    SINCE_BIRTH = 1


class ToyPhase(IntEnum):
    SPAWN = 0
    IMPORTS = 1
    WINDING = 2
    SET_UP = 8


KINDS["toy"] = ActorKind(
    name="toy",
    module="toy_actor",
    count="renderers",
    receives=Tick | Tock,
    sends=(Sends("scheduler"), Sends("toy")),
    restart_order=-1,
    restart_help="nobody's requests pass it",
    changeable=frozenset({"seed"}),
    gauges=ToyGauge,
    kept=frozenset({ToyGauge.TICKS}),
    metrics=(Metric("counter", "toy:ticks", "Messages to itself", ToyGauge.TICKS),),
    histograms=lambda longest: [HistogramSpec("toy:number", "Of a tick", (1, 10, longest))],
    phases=ToyPhase,
)
KINDS["cold"] = ActorKind(  # of the same code, which no template has imported
    name="cold",
    module="toy_actor",
    receives=Tick | Tock,
    sends=(Sends("scheduler"), Sends("cold")),
    prefork=False,
    restart_order=-1,
    gauges=ToyGauge,
    needed=False,
    phases=ToyPhase,
)
