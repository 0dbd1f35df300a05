"""A toy: it sends itself a message now and then, and the scheduler one about nothing."""

from __future__ import annotations

import time
from typing import Any, get_args

from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.protocol.messages import Cancel
from actorserve.actors.runtime.process import Actor, Context, run

TOY = KINDS["toy"]
Tick, _ = get_args(TOY.receives)


class Toy(Actor):
    """Counts its own messages; the count goes on from life to life."""

    wait_s = 0.02

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sent = self._heard = 0
        self._next = 0.0

    def handle(self, message: Any) -> None:
        self._heard = message.number
        self._context.status.add(TOY.gauges["TICKS"], 1)
        self._context.status.set_gauge(TOY.gauges["SINCE_BIRTH"], message.number)
        if counted := self._context.histograms.get("toy:number"):
            counted.observe(message.number)

    def do_work(self) -> int:
        if self._sent == self._heard and time.monotonic() >= self._next:  # it sleeps between two
            self._sent += 1
            self._next = time.monotonic() + self.wait_s
            self._context.post(self._context.name, Tick(self._sent))
            self._context.post("scheduler", Cancel([]))
        return 0


def main(context: Context) -> None:
    """Run a toy until it is told to stop."""
    context.phase_ends(TOY.phases["WINDING"])
    run(Toy(context), context)
