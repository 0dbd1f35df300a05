"""All actors at one moment: what the board, the lanes and /proc say, read by anyone, written by nobody.

It works whoever hangs or is stopped, since nobody is asked. Used by `actorserve ps` and `top` from outside, and by
frontends from inside: `SnapshotReader(context.system, context.segment, os.getppid()).look()`.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import msgspec

from actorserve.shm.board.board import ActorSnapshot, ActorState, Board, Parked
from actorserve.shm.board.startup import read_phases
from actorserve.shm.engine_places import EngineTroubles
from actorserve.shm.histogram import Counted
from actorserve.shm.kv_map.pause import PauseState, PauseWord
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.rings.lane_view import LaneView, view_lane
from actorserve.shm.segment import Segment

from ..protocol.actor_spec import ActorSpec, Lane
from ..protocol.kinds import SUPERVISOR, kind_of
from ..protocol.topology import System
from .startup import StartPhase

SECOND = 10**9
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")
MOST_READ = 4096  # what /proc says of a process in one line
STATES = {  # what an actor says of itself; beside these there are `stopped` (SIGSTOP), `hung` and `dead`
    ActorState.STARTING: "starting",
    ActorState.READY: "ready",
    ActorState.DRAINING: "draining",
    ActorState.STOPPED: "ended",
}
SLEEPING = "sleeping"  # a worker that waits without a model until /wake_up
DRAINS = "paused by /pause, once what has begun has ended"
PAUSES = {PauseState.DRAINING: DRAINS, PauseState.ENDING: DRAINS, PauseState.PAUSED: "paused by /pause"}


class ProcessView(msgspec.Struct, frozen=True):
    """One process, as /proc has it."""

    state: str  # the letter of proc(5)
    cpu_s: float  # user and system time of its life
    up_s: float
    memory_bytes: int  # resident, shared pages included
    private_bytes: int  # resident, without shared memory and files


class LaneStatus(msgspec.Struct, frozen=True):
    """One lane. Bytes and records are counted from the server's start; None: it moved too fast to be read."""

    source: str
    target: str
    capacity: int
    sent_bytes: int | None
    sent_records: int | None
    waiting_bytes: int | None
    waiting_records: int | None
    oldest_s: float | None  # age of the oldest record that waits; None if nothing does


class ActorStatus(msgspec.Struct, frozen=True):
    """One actor, or the supervisor, a template or a relay. What is not known is None."""

    name: str
    kind: str
    pid: int | None  # None until this life has said it
    state: str  # starting, ready, draining, ended, parked, sleeping, stopped (by SIGSTOP), hung, dead
    parked: str  # why no life of it is wanted; empty if one is
    up_s: float
    restarts: int
    heartbeat_s: float | None  # age of the heartbeat
    waiting_records: int  # of all lanes that lead here
    waiting_bytes: int
    oldest_s: float | None  # age of the oldest record that waits
    received_bytes: int  # sent to it since the server's start
    received_records: int
    given_up: int  # requests that it died on
    hand: int  # the ref that it works on, or 0
    cpu_s: float | None
    memory_bytes: int | None
    private_bytes: int | None
    gauges: dict[str, int]  # by their names in gauges.py, in lower case
    model: str = ""  # whose it is, where the server has several


class Snapshot(msgspec.Struct, frozen=True):
    """The server at one moment; the supervisor comes first, then the actors in the order of starting, then
    those templates that there are, and the relays of --uds and --http2-port.
    """

    at_s: float  # CLOCK_MONOTONIC
    actors: list[ActorStatus]
    lanes: list[LaneStatus]
    held: dict[int, str] = {}  # engines that compute nothing, or begin nothing, because somebody has said so: what

    def actor(self, name: str) -> ActorStatus:
        """The one of that name; KeyError if there is none."""
        for actor in self.actors:
            if actor.name == name:
                return actor
        raise KeyError(name)

    def sums(self, kind: str) -> dict[str, int]:
        """The gauges of all actors of a kind, added up."""
        found: Counter[str] = Counter()
        for actor in self.actors:
            if actor.kind == kind:
                found.update(actor.gauges)
        return found

    @property
    def ready(self) -> bool:
        """Every one of them that is wanted can do its part now. Without a template actors are started all the same, if
        later.
        """
        return all(actor.state in ("ready", "parked") for actor in self.actors if kind_of(actor.kind).needed)


class SnapshotReader:
    """Looks at one server, again and again."""

    def __init__(self, system: System, segment: Segment, supervisor_pid: int) -> None:
        self.system = system
        self.segment = segment
        self.supervisor_pid = supervisor_pid
        self.board = Board(segment, system.board_offset, system.board_blocks)
        self._histograms = [
            histogram for spec in system.actors for histogram in system.histograms(segment, spec).items()
        ]

    def look(self) -> Snapshot:
        """What is so now."""
        now_ns = time.monotonic_ns()
        lanes = [self._lane(lane, reader, now_ns) for lane in self.system.lanes for reader in lane.readers]
        beside = [spec for spec in self.system.beside if self.board.incarnation(spec.position) > 0]
        specs = [*self.system.actors, *beside]
        actors = [self._actor(spec, lanes, now_ns) for spec in specs]
        held = {engine: held for engine in self.system.engines if (held := self._held(engine, now_ns))}
        return Snapshot(now_ns / 1e9, [self._supervisor(), *actors], lanes, held)

    def histograms(self) -> dict[str, Counted]:
        """What all actors have counted up to now, by the keys of histograms.py."""
        found: dict[str, Counted] = {}
        for key, histogram in self._histograms:
            counted = histogram.read()
            found[key] = found[key] + counted if key in found else counted
        return found

    def _lane(self, lane: Lane, reader: str, now_ns: int) -> LaneStatus:
        """The lane as one of its readers has it."""
        view: LaneView | None = view_lane(
            self.segment, lane.offset, lane.capacity, len(lane.readers), lane.readers.index(reader)
        )
        if view is None:
            return LaneStatus(lane.source, reader, lane.capacity, None, None, None, None, None)
        return LaneStatus(
            source=lane.source,
            target=reader,
            capacity=lane.capacity,
            sent_bytes=view.sent_bytes,
            sent_records=view.sent_records,
            waiting_bytes=view.waiting_bytes,
            waiting_records=view.waiting_records,
            oldest_s=None if view.oldest_ns is None else max(0, now_ns - view.oldest_ns) / 1e9,
        )

    def _actor(self, spec: ActorSpec, lanes: list[LaneStatus], now_ns: int) -> ActorStatus:
        seen = self.board.snapshot(spec.position)
        process = view_process(seen.pid) if seen.pid else None
        own = [lane for lane in lanes if lane.target == spec.name]
        gauges = self.board.gauges(spec.position)
        return ActorStatus(
            name=spec.name,
            kind=spec.kind,
            pid=seen.pid or None,
            state=self._state(spec, seen, process, now_ns),
            parked=describe_parked(self.board.parked(spec.position)),
            up_s=max(0, now_ns - seen.started_ns) / 1e9,
            restarts=seen.restarts,
            heartbeat_s=max(0, now_ns - seen.heartbeat_ns) / 1e9 if seen.heartbeat_ns else None,
            waiting_records=sum(lane.waiting_records or 0 for lane in own),
            waiting_bytes=sum(lane.waiting_bytes or 0 for lane in own),
            oldest_s=max((lane.oldest_s for lane in own if lane.oldest_s is not None), default=None),
            received_bytes=sum(lane.sent_bytes or 0 for lane in own),
            received_records=sum(lane.sent_records or 0 for lane in own),
            given_up=self.board.given_up(spec.position),
            hand=self.board.in_flight(spec.position)[0],
            cpu_s=process.cpu_s if process else None,
            memory_bytes=process.memory_bytes if process else None,
            private_bytes=process.private_bytes if process else None,
            gauges={gauge.name.lower(): gauges[gauge] for gauge in kind_of(spec.kind).gauges},
            model=self.system.whose(spec),
        )

    def _state(self, spec: ActorSpec, seen: ActorSnapshot, process: ProcessView | None, now_ns: int) -> str:
        """What it says of itself, unless that cannot be true."""
        if process is None and self.board.is_parked(spec.position):
            return "parked"
        if process is None and self.board.rests(spec.position):
            return "dead"
        if seen.pid and process is None:
            return "ended" if seen.state is ActorState.STOPPED else "dead"
        if process is not None and process.state in "Tt":
            return "stopped"
        config = self.system.config
        limit_s = config.step_timeout if kind_of(spec.kind).computes else config.hang_timeout
        beating = seen.state in (ActorState.READY, ActorState.DRAINING)
        if beating and now_ns - seen.heartbeat_ns > limit_s * 1e9:
            return "hung"
        if seen.state is ActorState.READY and self.board.is_parked(spec.position):
            return STATES[ActorState.DRAINING]
        if seen.state is ActorState.READY and kind_of(spec.kind).computes and self._sleep(spec.engine).state.is_parked:
            return SLEEPING
        return STATES[seen.state]

    def _sleep(self, engine: int) -> SleepWord:
        """Made for one look: what it maps would keep the segment from being closed."""
        return SleepWord(self.segment.map, self.system.kv_map_offsets[engine])

    def _held(self, engine: int, now_ns: int) -> str:
        """By whom, and since when; empty if by nobody."""
        word = self._sleep(engine)
        if (sleep := word.state).is_on:
            since = f"for {max(0, now_ns - word.since_ns) / SECOND:.0f} s"
            until = "something is asked" if sleep.idle else "/wake_up"
            told = "to sleep once what has begun has ended" if sleep.draining else f"asleep until {until}"
            return f"{told} (level {sleep.level}, {since})"
        paused = PAUSES.get(PauseWord(self.segment.map, self.system.kv_map_offsets[engine]).state, "")
        elsewhere = self.system.remote_engines
        if engine not in elsewhere:
            return paused
        why = EngineTroubles(self.segment.map, self.system.troubles_offset).read(engine - elsewhere.start)
        address = self.system.config.remote_engines[engine - elsewhere.start]
        return "; ".join(filter(None, (paused, why and f"at {address}, and does not compute here: {why}")))

    def _supervisor(self) -> ActorStatus:
        process = view_process(self.supervisor_pid)
        said = STATES[self.board.snapshot(self.system.supervisor.position).state]
        state = "dead" if process is None else "stopped" if process.state in "Tt" else said
        return ActorStatus(
            name=SUPERVISOR,
            kind=SUPERVISOR,
            pid=self.supervisor_pid,
            state=state,
            parked="",
            up_s=process.up_s if process else 0.0,
            restarts=0,
            heartbeat_s=None,
            waiting_records=0,
            waiting_bytes=0,
            oldest_s=None,
            received_bytes=0,
            received_records=0,
            given_up=0,
            hand=0,
            cpu_s=process.cpu_s if process else None,
            memory_bytes=process.memory_bytes if process else None,
            private_bytes=process.private_bytes if process else None,
            gauges={},
        )


def describe_parked(why: Parked) -> str:
    """For people, and as a label."""
    return " and ".join(reason.name.lower() for reason in Parked if reason & why and reason.name)


def phases_of(system: System, segment: Segment, board: Board, name: str) -> dict[str, float]:
    """Seconds of each phase that has ended, of the server's start (SUPERVISOR) or of an actor's life that counts."""
    actor = system.by_name.get(name)
    began = None if actor is None else board.snapshot(actor.position).started_ns
    took = read_phases(segment, system.phase_offsets[name], began)
    phases = StartPhase if actor is None else actor.traits.phases
    return {phases(number).name.lower(): ns / SECOND for number, ns in took.items()}


def view_process(pid: int) -> ProcessView | None:
    """What the kernel says of a process; None if it is gone, or dead and not yet buried."""
    try:
        stat, statm = _read(f"/proc/{pid}/stat"), _read(f"/proc/{pid}/statm")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    if fields[0] in b"ZX":
        return None
    resident, shared = statm.split()[1:3]
    return ProcessView(
        state=fields[0].decode(),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        up_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS),
        memory_bytes=int(resident) * PAGE,
        private_bytes=(int(resident) - int(shared)) * PAGE,
    )


def _read(path: str) -> bytes:
    """A file of /proc that one read brings whole. `Path.read_bytes()` takes three times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, MOST_READ)
    finally:
        os.close(file)
