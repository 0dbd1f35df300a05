"""One fault of one actor, and its next life."""

from __future__ import annotations

import os
import random
import re

from tests.support.server import Server
from tools.chaos.faults_options import FAULTS


def hit(
    machines: list[Server],
    kind: str,
    fault: str,
    rng: random.Random,
    nodes: bool = True,
    engines: int | None = None,
) -> None:
    """One fault; returns when a new life of the actor is up, which of `nodes` the first of the machines says. An
    exception is for one that is up: while modules are imported it may come into a call whose exceptions Python lets
    nobody have. `engines`: those of the first machine that stay; workers of others are parked, and come no more.
    """
    kinds = {kind, "link"} if kind == "scheduler" else {kind}
    found: list[tuple[Server, str, int]] = []
    while not found:  # a worker that falls asleep or wakes has no process for a moment
        there = [(machine, name, pid) for machine in machines for name, pid in machine.pids().items()]
        found = [one for one in there if re.split("[-@]", one[1])[0] in kinds]
        if engines is not None:
            found = [one for one in found if one[0] is not machines[0] or not _is_leaving(one[1], engines)]
        if fault == "exception":
            told = "\n".join(machine.output for machine in machines)
            found = [one for one in found if f"{one[1]} is up (pid {one[2]}," in told]
    machine, name, pid = rng.choice(found)
    os.kill(pid, FAULTS[fault])
    server = machines[0] if nodes else machine
    try:
        server.wait_for(rf"{re.escape(name)} is up \(pid (?!{pid},)")
    except AssertionError:
        raise SystemExit(f"{name} has not come up again:\n" + "\n".join(server.lines[-60:])) from None


def _is_leaving(name: str, engines: int) -> bool:
    kind, _, engine = name.partition("@")
    return kind.partition("-")[0] == "worker" and engine.isdigit() and int(engine) >= engines
