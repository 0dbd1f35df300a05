"""The actors' traces as one Chrome/Perfetto trace (the JSON of `traceEvents`): a track for each actor.

Turns, steps, renderings and flushes are slices, records are arrows from the sender's turn to the receiver's, starts
and deaths are instants, and how many sequences run and wait are counters. Also what a dead actor did last is there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from actorserve.shm.rings.trace_ring import Event, read_trace

from ..protocol.actor_spec import ActorSpec
from ..runtime.in_flight import Ended
from ..telemetry.trace_events import EventKind, read_counts, read_queues
from .attach import Attached

POINT_US = 0.5  # length of a slice that only holds the end of an arrow
HOWS = {
    Ended.NEVER: "",
    Ended.DIED: "died",
    Ended.HUNG: "hung, and was killed",
    Ended.REPLACED: "was replaced",
    Ended.OUTSIDE: "was killed or stopped from outside",
}
SPANS = {EventKind.TURN: "turn", EventKind.STEP: "step", EventKind.FLUSH: "flush", EventKind.RENDERING: "rendering"}

Entry = dict[str, Any]


@dataclass(frozen=True)
class Track:
    """One actor's events, and its turns by their ends."""

    spec: ActorSpec
    events: list[Event]
    turns: list[tuple[int, int]]  # (end, begin)

    def in_turn(self, at_ns: int) -> bool:
        """Was there a turn then?"""
        place = bisect_left(self.turns, (at_ns, 0))
        return place < len(self.turns) and self.turns[place][1] <= at_ns


def read_tracks(server: Attached, since_ns: int) -> list[Track]:
    """What all actors did from then on."""
    tracks = []
    for spec in server.system.actors:
        events = read_trace(server.segment, server.system.trace_offsets[spec.name])
        recent = [event for event in events if event.at_ns >= since_ns]
        turns = sorted((event.at_ns, event.at_ns - event.first) for event in recent if event.kind == EventKind.TURN)
        tracks.append(Track(spec, recent, turns))
    return tracks


def make_trace(server: Attached, since_ns: int) -> Entry:
    """All of it, to be written as JSON. Times are microseconds of CLOCK_MONOTONIC."""
    tracks = read_tracks(server, since_ns)
    process, names = server.description.pid, {spec.name: spec.position + 1 for spec in server.system.actors}
    entries = [_meta("process_name", process, 0, f"actorserve on port {server.description.port}")]
    for track in tracks:
        thread = names[track.spec.name]
        entries.append(_meta("thread_name", process, thread, track.spec.name))
        entries.append({**_meta("thread_sort_index", process, thread, ""), "args": {"sort_index": thread}})
        for event in track.events:
            entries += ({**entry, "pid": process, "tid": thread} for entry in _of_event(event))
    by_name = {track.spec.name: track for track in tracks}
    for number, (entry, name) in enumerate(_arrows(server, by_name)):
        numbered = {"id": number // 2} if entry["ph"] in "sf" else {}
        entries.append({**entry, **numbered, "pid": process, "tid": names[name]})
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def _meta(kind: str, process: int, thread: int, name: str) -> Entry:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _of_event(event: Event) -> Iterator[Entry]:
    """What one event is on its actor's track."""
    at_us, kind = event.at_ns / 1e3, event.kind
    if kind in SPANS:
        name, args = SPANS[EventKind(kind)], _span_arguments(event)
        if kind == EventKind.STEP:
            name = f"step {event.second}"
        began = (event.at_ns - event.first) / 1e3
        yield {
            "ph": "X",
            "cat": SPANS[EventKind(kind)],
            "name": name,
            "ts": began,
            "dur": event.first / 1e3,
            "args": args,
        }
    elif kind == EventKind.STARTED:
        yield from _start(event)
    elif kind in (EventKind.PLANNED, EventKind.APPLIED):
        rows, tokens = read_counts(event.small)
        word = "plan" if kind == EventKind.PLANNED else "apply"
        args = {"rows": rows, "tokens": tokens} if kind == EventKind.PLANNED else {}
        yield {"ph": "i", "s": "t", "cat": word, "name": f"{word} step {event.first}", "ts": at_us, "args": args}
        running, waiting = read_queues(event.second)
        yield {"ph": "C", "name": "sequences", "ts": at_us, "args": {"running": running, "waiting": waiting}}


def _span_arguments(event: Event) -> Entry:
    if event.kind == EventKind.STEP:
        rows, tokens = read_counts(event.small)
        return {"step": event.second, "rows": rows, "tokens": tokens}
    if event.kind == EventKind.RENDERING:
        return {"ref": hex(event.second), "choices": event.small}
    return {"messages" if event.kind == EventKind.TURN else "answers": event.second}


def _start(event: Event) -> Iterator[Entry]:
    how = HOWS[Ended(event.small)]
    if how and event.second:
        yield {
            "ph": "i",
            "s": "t",
            "cat": "life",
            "name": f"last sign of life {event.first - 1}",
            "ts": event.second / 1e3,
            "args": {"then": how},
        }
    args = {"life": event.first, "the one before": how}
    yield {
        "ph": "i",
        "s": "t",
        "cat": "life",
        "name": f"born (life {event.first})",
        "ts": event.at_ns / 1e3,
        "args": args,
    }


def _arrows(server: Attached, tracks: dict[str, Track]) -> Iterator[tuple[Entry, str]]:
    """(entry, actor) of each record that came: where it was sent, then where it came; at last, what holds both."""
    points: list[tuple[Entry, str]] = []
    for name, track in tracks.items():
        sources = [lane.source for lane in server.system.lanes if name in lane.readers]
        for event in track.events:
            if event.kind != EventKind.RECEIVED:
                continue
            source, sent_ns = sources[event.small], event.first
            args = {"from": source, "messages": event.second, "hop_us": (event.at_ns - sent_ns) / 1e3}
            base = {"cat": "message", "name": f"{source} → {name}"}
            for who, at_ns in ((source, sent_ns), (name, event.at_ns)):
                if not tracks[who].in_turn(at_ns):
                    points.append(({**base, "ph": "X", "ts": at_ns / 1e3, "dur": POINT_US, "args": args}, who))
            yield {**base, "ph": "s", "ts": sent_ns / 1e3}, source
            yield {**base, "ph": "f", "bp": "e", "ts": event.at_ns / 1e3, "args": args}, name
    yield from points
