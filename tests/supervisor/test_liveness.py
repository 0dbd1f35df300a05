"""Whose loop stands still, and whether it was busy meanwhile."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actorserve.actors.supervisor import liveness as module
from actorserve.actors.supervisor.liveness import LOOK_S, Liveness, cpu_seconds, queued_seconds
from actorserve.shm.board.board import ActorSnapshot, ActorState


def seen(beat: int, state: ActorState = ActorState.READY) -> ActorSnapshot:
    return ActorSnapshot(1, 0, os.getpid(), state, beat)


def test_looks_are_counted_while_the_heartbeat_stands_still() -> None:
    liveness = Liveness(os.getpid())
    for beat in (1, 2, 3):
        liveness.look(seen(beat))
        assert liveness.still_s == 0.0
    for count in range(1, 5):
        liveness.look(seen(3))
        assert liveness.still_s == count * LOOK_S
    liveness.look(seen(4))
    assert liveness.still_s == 0.0 and liveness.age_s == 8 * LOOK_S


def test_a_late_look_counts_for_no_more() -> None:
    """The machine slept, or the supervisor was stopped: the clock has gone on, and nobody is to blame."""
    liveness = Liveness(os.getpid())
    liveness.look(seen(int(time.monotonic_ns())))
    liveness.look(seen(int(time.monotonic_ns()) - 10**15))
    liveness.look(seen(int(time.monotonic_ns()) - 10**15))
    assert liveness.still_s <= 2 * LOOK_S


def test_who_starts_is_told_from_who_was_up() -> None:
    liveness = Liveness(os.getpid())
    liveness.look(seen(1, ActorState.STARTING))
    assert not liveness.was_up
    liveness.look(seen(1, ActorState.DRAINING))
    liveness.look(seen(1, ActorState.STARTING))
    assert liveness.was_up


def test_who_is_stopped_while_it_starts_is_seen() -> None:
    """A start may take an hour; one that has been stopped would never be over."""
    with subprocess.Popen(["sleep", "60"]) as process:
        liveness = Liveness(process.pid)
        liveness.look(seen(1, ActorState.STARTING))
        assert not liveness.stopped_s
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        for count in range(1, 4):
            liveness.look(seen(1, ActorState.STARTING))
            assert liveness.stopped_s == count * LOOK_S
        process.send_signal(signal.SIGCONT)
        os.waitpid(process.pid, os.WCONTINUED)
        liveness.look(seen(1, ActorState.STARTING))
        assert not liveness.stopped_s
        process.kill()


def test_a_long_start_is_no_loop_that_stands_still() -> None:
    """Weights are read for a minute, and the first look behind that finds the heartbeat of its beginning."""
    liveness = Liveness(os.getpid())
    for _ in range(240):
        liveness.look(seen(1, ActorState.STARTING))
    assert liveness.still_s == 239 * LOOK_S
    liveness.look(seen(1))
    assert liveness.still_s == 0.0
    liveness.look(seen(1))
    assert liveness.still_s == LOOK_S, "but from then on it counts"


def test_busy_is_told_from_stopped() -> None:
    liveness = Liveness(os.getpid())
    liveness.look(seen(1))
    liveness.look(seen(1))
    began = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - began < module.BUSY * LOOK_S + 0.02:
        pass  # burns CPU
    assert liveness.was_busy
    stopped = Liveness(os.getppid())
    for _ in range(2000):
        stopped.look(seen(1))
    assert not stopped.was_busy


def test_who_was_stopped_by_a_signal_is_seen() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            liveness = Liveness(process.pid)
            seen_running = liveness.is_stopped
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            seen_stopped = liveness.is_stopped
        finally:
            process.kill()
    assert (seen_running, seen_stopped, liveness.is_stopped) == (False, True, False)


@pytest.mark.parametrize(
    ("used", "queued", "busy"),
    [
        (1.0, 0.0, True),
        (0.25, 0.7, True),
        (0.25, 0.0, False),
        (0.0, 0.0, False),
        (0.02, 0.97, False),
        (0.0, 1.0, False),
    ],
    ids=["alone", "one of four on a core", "slow", "stopped", "hardly runs", "never runs"],
)
def test_a_loop_on_a_busy_machine_is_told_from_one_that_gets_no_core(
    monkeypatch: pytest.MonkeyPatch, used: float, queued: float, busy: bool
) -> None:
    now = [5.0, 7.0]
    monkeypatch.setattr(module, "cpu_seconds", lambda pid: now[0])
    monkeypatch.setattr(module, "queued_seconds", lambda pid: now[1])
    liveness = Liveness(1)
    for _ in range(int(1 / LOOK_S) + 1):
        liveness.look(seen(1))
    assert liveness.still_s == 1.0
    now[0], now[1] = now[0] + used, now[1] + queued
    assert liveness.was_busy is busy


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count it")
def test_who_stands_in_line_for_a_core_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    children = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    try:
        deadline = time.monotonic() + 60
        while not all(queued_seconds(child.pid) > 0.1 and cpu_seconds(child.pid) > 0.1 for child in children):
            assert time.monotonic() < deadline
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert queued_seconds(children[0].pid) == 0.0


def test_a_process_that_is_gone_has_used_nothing() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert cpu_seconds(child) == 0.0


def test_no_descriptor_is_left_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no mistake, and nobody is called busy for it; what can be seen again later is."""

    def read_text(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", read_text)
    assert math.isnan(cpu_seconds(os.getpid())) and math.isnan(queued_seconds(os.getpid()))
    liveness = Liveness(os.getpid())
    for _ in range(3):
        liveness.look(seen(1))
    assert liveness.still_s == 2 * LOOK_S and not liveness.was_busy
    monkeypatch.undo()
    liveness.look(seen(2))
    assert not liveness.still_s and liveness.was_busy  # no time has passed
