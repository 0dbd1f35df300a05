"""Starts that fail: when that is said, and when it has lasted too long."""

from __future__ import annotations

import errno

from actorserve.actors.supervisor.processes.failed_starts import LONGEST_S, SAY_S, FailedStarts

GONE = FileNotFoundError(errno.ENOENT, "No such file or directory")
SCARCE = OSError(errno.EMFILE, "Too many open files")


def test_one_that_fails_for_minutes_lasts_unless_it_comes_up() -> None:
    starts = FailedStarts()
    assert not starts.lasts("worker", GONE, 100)
    assert not starts.lasts("worker", GONE, 99 + LONGEST_S)
    assert not starts.lasts("renderer-0", GONE, 100 + LONGEST_S), "each has its own time"
    assert starts.lasts("worker", GONE, 100 + LONGEST_S)
    starts.is_up("worker")
    assert not starts.lasts("worker", GONE, 101 + LONGEST_S)


def test_scarcity_never_lasts() -> None:
    starts = FailedStarts()
    assert not any(starts.lasts("worker", SCARCE, now) for now in (0, LONGEST_S, 9 * LONGEST_S))
    assert not starts.lasts("worker", GONE, 9 * LONGEST_S), "it begins now"
    assert not starts.lasts("worker", SCARCE, 9.5 * LONGEST_S)
    assert not starts.lasts("worker", GONE, 10 * LONGEST_S), "it begins anew"


def test_it_is_said_at_once_and_now_and_then() -> None:
    starts = FailedStarts()
    assert [starts.is_to_be_said("worker", now) for now in (0, 1, SAY_S, SAY_S + 1)] == [True, False, True, False]
    assert starts.is_to_be_said("renderer-0", 1)
    starts.is_up("worker")
    assert starts.is_to_be_said("worker", SAY_S + 2)
