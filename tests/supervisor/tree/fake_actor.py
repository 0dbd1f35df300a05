"""An actor process that behaves as the test says, in place of a real one; fake_launch.py forks it.

FAKE_ACTORS is JSON: for an actor's name the acts of its lives, one after the other; the last is played again and again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from actorserve.actors.options.config import ConfigError
from actorserve.actors.runtime.process import Actor, Context, run
from actorserve.actors.telemetry.gauges import FrontendGauge, SchedulerGauge
from actorserve.shm.rings.mailbox import wake


class Idle(Actor):
    """Does nothing until it is told to stop."""


class Mortal(Idle):
    """Ends after its first turn, so it has been ready."""

    def do_work(self) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 1


class Chatter(Idle):
    """Writes many lines, more than any pipe holds, and a last one without its end."""

    def __init__(self) -> None:
        self.silent = False

    def do_work(self) -> int:
        if not self.silent:
            self.silent = True
            for number in range(20_000):
                print(f"line {number}")
            print("x" * 40_000)
            print("all said", flush=True)
        return 0


def serve(context: Context) -> None:
    if context.spec.kind == "frontend":
        context.status.set_gauge(FrontendGauge.WARM, 1)  # as if the warm-up request had been answered
    run(Idle(), context)


class Cold(Idle):
    """A frontend whose warm-up request is answered when the test likes."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def do_work(self) -> int:
        if Path(os.environ["FAKE_DRAINED"]).exists():
            self.context.status.set_gauge(FrontendGauge.WARM, 1)
            wake(self.context.eventfds["supervisor"])
        return 0


def cold(context: Context) -> None:
    run(Cold(context), context)


def die_ready(context: Context) -> None:
    run(Mortal(), context)


def deadly(context: Context) -> None:
    """Dies on a request, as it did before: each costs three lives."""
    number, tries = divmod(context.incarnation - 1, 3)
    context.status.set_in_flight(number + 1, tries + 1)
    run(Mortal(), context)


def deaf(context: Context) -> None:
    """Does not stop on SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run(Idle(), context)


def chatter(context: Context) -> None:
    run(Chatter(), context)


def helper(context: Context) -> None:
    """Leaves a process behind that nobody told to die."""
    process = subprocess.Popen(["sleep", "1000"])
    print(f"helper {process.pid}")
    run(Idle(), context)


def drain(context: Context) -> None:
    """A frontend with a request that takes as long as the test likes."""
    context.status.set_gauge(FrontendGauge.WARM, 1)
    run(Idle(), context)
    print("draining")
    while not Path(os.environ["FAKE_DRAINED"]).exists():
        context.inbox.wait(0.05)
    print("drained")


def show_environment(context: Context) -> None:
    """Says what it has of a service manager's variables."""
    names = [name for name in sorted(os.environ) if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]
    print(f"environment: {' '.join(names) or 'none'}", flush=True)
    serve(context)


def exit_3(context: Context) -> None:
    sys.exit(3)


def fail(context: Context) -> None:
    raise RuntimeError("no such luck")


def refuse(context: Context) -> None:
    raise ConfigError("--dtype: not with this model")


def kill(context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(context: Context) -> None:
    """Never comes up."""
    print("hanging", flush=True)
    while True:
        signal.pause()


def play(context: Context) -> None:
    if context.spec.kind == "scheduler":
        context.status.set_gauge(SchedulerGauge.BLOCKS_TOTAL, 1)  # as if it had met its worker
    acts: dict[str, Callable[[Context], None]] = {
        act.__name__: act
        for act in (
            serve,
            cold,
            show_environment,
            die_ready,
            deadly,
            deaf,
            chatter,
            helper,
            drain,
            exit_3,
            fail,
            refuse,
            kill,
            hang,
        )
    }
    lives = json.loads(os.environ.get("FAKE_ACTORS", "{}")).get(context.name, ["serve"])
    acts[lives[min(context.incarnation, len(lives)) - 1]](context)
