"""Whose loop stands still, and whether it was busy meanwhile."""

from __future__ import annotations

import os
import time

from actorserve.actors.supervisor import pulse as module
from actorserve.actors.supervisor.pulse import LOOK_S, Pulse, cpu_seconds
from actorserve.shm.board import ActorSnapshot, ActorState


def seen(beat: int, state: ActorState = ActorState.READY) -> ActorSnapshot:
    return ActorSnapshot(1, 0, os.getpid(), state, beat)


def test_looks_are_counted_while_the_heartbeat_stands_still() -> None:
    pulse = Pulse(os.getpid())
    for beat in (1, 2, 3):
        pulse.look(seen(beat))
        assert pulse.still_s == 0.0
    for count in range(1, 5):
        pulse.look(seen(3))
        assert pulse.still_s == count * LOOK_S
    pulse.look(seen(4))
    assert pulse.still_s == 0.0 and pulse.age_s == 8 * LOOK_S


def test_a_late_look_counts_for_no_more() -> None:
    """The machine slept, or the supervisor was stopped: the clock has gone on, and nobody is to blame."""
    pulse = Pulse(os.getpid())
    pulse.look(seen(int(time.monotonic_ns())))
    pulse.look(seen(int(time.monotonic_ns()) - 10**15))
    pulse.look(seen(int(time.monotonic_ns()) - 10**15))
    assert pulse.still_s <= 2 * LOOK_S


def test_who_starts_is_told_from_who_was_up() -> None:
    pulse = Pulse(os.getpid())
    pulse.look(seen(1, ActorState.STARTING))
    assert not pulse.was_up
    pulse.look(seen(1, ActorState.DRAINING))
    pulse.look(seen(1, ActorState.STARTING))
    assert pulse.was_up


def test_busy_is_told_from_stopped() -> None:
    pulse = Pulse(os.getpid())
    pulse.look(seen(1))
    pulse.look(seen(1))
    began = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - began < module.BUSY * LOOK_S + 0.02:
        pass  # burns CPU
    assert pulse.was_busy
    stopped = Pulse(os.getppid())
    for _ in range(2000):
        stopped.look(seen(1))
    assert not stopped.was_busy


def test_a_process_that_is_gone_has_used_nothing() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert cpu_seconds(child) == 0.0
