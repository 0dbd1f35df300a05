"""`actorserve trace`: what it writes is what Chrome's trace format asks for, and has what dead actors did last."""

from __future__ import annotations

import json
import os
import signal
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server
from tests.support.until import until

from .commands import port_of, run
from .test_ps import look, stopped
from .test_why import ask

Entry = dict[str, Any]
MOST_AHEAD = 2  # steps that a worker may have begun since its last sign
SLACK = 0.01  # microseconds, of rounding
KNOWN = {"X", "s", "f", "C", "M", "i"}
ACTORS = ["worker", "scheduler", "detokenizer-0", "renderer-0", "frontend-0"]


def traced(server: Server, *arguments: str) -> list[Entry]:
    """The entries, checked."""
    done = run("trace", "-o", "-", "--server", port_of(server), *arguments)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["displayTimeUnit"] == "ms"
    entries: list[Entry] = made["traceEvents"]
    check_entries(entries)
    return entries


def check_entries(entries: list[Entry]) -> None:
    """The rules of the format, one after the other."""
    assert {entry["ph"] for entry in entries} <= KNOWN
    for entry in entries:
        assert isinstance(entry["name"], str) and isinstance(entry["pid"], int) and isinstance(entry["tid"], int)
        assert entry["ts"] >= 0 and (entry["ph"] != "X" or entry["dur"] >= 0)
        assert entry["ph"] != "C" or all(isinstance(value, int) for value in entry["args"].values())
    starts = {entry["id"]: entry for entry in entries if entry["ph"] == "s"}
    ends = {entry["id"]: entry for entry in entries if entry["ph"] == "f"}
    arrows = sum(entry["ph"] in "sf" for entry in entries)
    assert starts.keys() == ends.keys() and 2 * len(starts) == arrows, "each arrow has a number, a start and an end"
    slices = sorted((entry for entry in entries if entry["ph"] == "X"), key=lambda entry: (entry["ts"], -entry["dur"]))
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"] and start["tid"] != end["tid"] and end["bp"] == "e"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"]), "by which they are joined"
    for tid in {entry["tid"] for entry in slices}:
        own = [(entry["ts"], entry["ts"] + entry["dur"]) for entry in slices if entry["tid"] == tid]
        check_nesting(own)
        points = [entry["ts"] for entry in entries if entry["ph"] in "sf" and entry["tid"] == tid]
        check_points(own, points)


def check_nesting(spans: list[tuple[float, float]]) -> None:
    """Each lies within the ones around it."""
    around: list[float] = []
    for begin, end in spans:
        while around and around[-1] <= begin + SLACK:
            around.pop()
        assert not around or end <= around[-1] + SLACK, f"from {begin} to {end}, which is behind {around[-1]}"
        around.append(end)


def check_points(spans: list[tuple[float, float]], points: list[float]) -> None:
    """No arrow hangs in the air."""
    for point in points:
        last = bisect_right(spans, (point + SLACK, float("inf")))
        assert any(end >= point - SLACK for _, end in spans[max(0, last - 50) : last]), f"nothing is at {point}"


def threads(entries: list[Entry]) -> dict[str, int]:
    return {entry["args"]["name"]: entry["tid"] for entry in entries if entry["name"] == "thread_name"}


SCRIPTED = ("--worker", "scripted", "--scripted-step-ms", "2", "--no-warm-up", "--hang-timeout", "300")


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """Whose actors may be killed."""
    with Server(*SCRIPTED) as made:
        yield made


def test_the_way_of_one_request() -> None:
    """Of a server that has had no other."""
    with Server(*SCRIPTED) as server:
        assert ask(server, "traced", max_tokens=20).status_code == 200
        entries = traced(server)
    named = threads(entries)
    assert sorted(named) == sorted(ACTORS)
    kinds = Counter((entry["cat"], entry["tid"]) for entry in entries if entry["ph"] == "X")
    assert kinds["step", named["worker"]] == 20 and kinds["rendering", named["renderer-0"]] == 1
    assert kinds["flush", named["frontend-0"]] >= 1 and all(kinds["turn", tid] for tid in named.values())
    arrows = {entry["name"] for entry in entries if entry["ph"] == "s"}
    assert {"frontend-0 → renderer-0", "renderer-0 → scheduler", "scheduler → worker", "worker → scheduler"} <= arrows
    assert {"scheduler → detokenizer-0", "detokenizer-0 → frontend-0"} <= arrows
    planned = [entry["args"] for entry in entries if entry["ph"] == "i" and entry["cat"] == "plan"]
    steps = [entry["args"] for entry in entries if entry.get("cat") == "step"]
    assert [(step["rows"], step["tokens"]) for step in steps] == [(one["rows"], one["tokens"]) for one in planned]
    assert [step["step"] for step in steps] == list(range(1, 21)) and steps[0]["tokens"] > 1
    counted = [entry["args"] for entry in entries if entry["ph"] == "C"]
    assert max(one["running"] for one in counted) == 1 and counted[-1] == {"running": 0, "waiting": 0}


def test_after_a_death_both_lives_are_there(own: Server) -> None:
    asks = threading.Thread(target=ask, args=(own, "killed"), kwargs={"max_tokens": 450})
    before = look(own).actor("worker").gauges["steps"]
    asks.start()
    until(lambda: look(own).actor("worker").gauges["steps"] > before + 20)
    os.kill(own.pids()["worker"], signal.SIGKILL)
    asks.join()
    entries = traced(own, "--seconds", "60")
    tid = threads(entries)["worker"]
    own_events = [entry for entry in entries if entry["tid"] == tid]
    (born,) = [entry for entry in own_events if entry["name"] == "born (life 2)"]
    (last,) = [entry for entry in own_events if entry["name"] == "last sign of life 1"]
    assert (
        born["args"] == {"life": 2, "the one before": "was killed or stopped from outside"} and last["ts"] < born["ts"]
    )
    steps = [entry for entry in own_events if entry.get("cat") == "step"]
    old, new = ([step for step in steps if (step["ts"] > born["ts"]) == after] for after in (False, True))
    assert len(old) > 20 and new[0]["args"]["step"] == 1 and new[0]["args"]["tokens"] > 20
    assert sum(step["ts"] > last["ts"] for step in old) <= MOST_AHEAD, "steps of which it gave a sign no more"


def test_a_death_in_the_middle_is_told_by_what_was_received(own: Server) -> None:
    """A scheduler that stands still has turned for the last time, and its trace can be read."""
    with stopped(own.pids()["scheduler"]):
        entries = traced(own, "--seconds", "60")
        assert [entry for entry in entries if entry["tid"] == threads(entries)["scheduler"] and entry["ph"] == "X"]


def test_only_the_last_seconds(own: Server, tmp_path: Path) -> None:
    assert ask(own, "recent").status_code == 200
    assert not [entry for entry in traced(own, "--seconds", "1e-6") if entry["ph"] != "M"]
    file = tmp_path / "it.json"
    done = run("trace", "-o", str(file), "--server", port_of(own))
    written = json.loads(file.read_text())["traceEvents"]
    assert done.stdout == f"{len(written):,} events in {file}: https://ui.perfetto.dev opens it\n"
    assert [entry for entry in written if entry["ph"] == "X"]


def test_what_cannot_be(own: Server, tmp_path: Path) -> None:
    done = run("trace", "-o", str(tmp_path / "no" / "folder"), "--server", port_of(own))
    assert done.returncode == 1 and "No such file" in done.stderr
    for seconds in ("0", "inf", "nan"):
        done = run("trace", "--seconds", seconds)
        assert done.returncode == 2 and "--seconds: a number over 0" in done.stderr
    assert run("trace", "--server", "1", "-o", "-").returncode == 1
