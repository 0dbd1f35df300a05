"""One view of all actors, from the words that they and their supervisor write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.protocol.messages import Admit, Cancel
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.actors.telemetry.snapshot import ActorStatus, SnapshotReader, view_process
from actorserve.shm.board.board import HEARTBEAT, PID, ActorState, BoardWriter
from actorserve.shm.rings.mailbox import Inbox, Outbox
from actorserve.shm.rings.ring import Consumer, Producer
from tests.supervisor.test_shared_memory import MODEL

HANG_S, STEP_S = 20.0, 50.0


class Scene:
    """A server's memory without its processes: all actors are this one."""

    def __init__(self) -> None:
        config = Config(max_num_seqs=2, max_num_queued_reqs=2, renderers=2, hang_timeout=HANG_S, step_timeout=STEP_S)
        self.memory = Memory(System(config, MODEL))
        self.system = self.memory.system
        self.supervisor = BoardWriter(self.memory.board, self.system.supervisor.position)
        self.supervisor.set_state(ActorState.READY)
        self.snapshots = SnapshotReader(self.system, self.memory.segment, os.getpid())

    def born(self, name: str, state: ActorState = ActorState.READY) -> BoardWriter:
        writer = BoardWriter(self.memory.board, self.system.by_name[name].position)
        writer.set_state(state)
        return writer

    def set_word(self, name: str, word: int, value: int) -> None:
        board = self.memory.board
        board.words[board.word(self.system.by_name[name].position, word)] = value

    def outbox(self, source: str, target: str) -> Outbox:
        lane = next(lane for lane in self.system.lanes if (lane.source, lane.target) == (source, target))
        producer = Producer(self.memory.segment, lane.offset, lane.capacity)
        return Outbox(producer, self.system.mailbox_offsets[target], self.memory.eventfds[target])

    def inbox(self, target: str) -> Inbox:
        lanes = {
            lane.source: Consumer(self.memory.segment, lane.offset, lane.capacity)
            for lane in self.system.lanes
            if lane.target == target
        }
        eventfd, sleeping = self.memory.eventfds[target], self.system.mailbox_offsets[target]
        return Inbox(self.memory.segment, sleeping, lanes, eventfd, Admit | Cancel)

    def seen(self, name: str) -> ActorStatus:
        return self.snapshots.look().actor(name)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.memory.close()


def test_the_supervisor_comes_first_then_all_actors(scene: Scene) -> None:
    snapshot = scene.snapshots.look()
    assert [actor.name for actor in snapshot.actors] == ["supervisor", *scene.system.by_name]
    supervisor = snapshot.actor("supervisor")
    assert (supervisor.pid, supervisor.state, supervisor.heartbeat_s) == (os.getpid(), "ready", None)
    assert not snapshot.ready
    with pytest.raises(KeyError):
        snapshot.actor("nobody")


def test_the_supervisor_says_how_it_stands_with_the_server(scene: Scene) -> None:
    for name in scene.system.by_name:
        scene.born(name)
    for state in (ActorState.STARTING, ActorState.DRAINING):
        scene.supervisor.set_state(state)
        assert scene.seen("supervisor").state == state.name.lower() and not scene.snapshots.look().ready


def test_the_template_comes_last_once_there_is_one(scene: Scene, child: subprocess.Popen[bytes]) -> None:
    """The supervisor speaks for it. A server without one is ready all the same."""
    for name in scene.system.by_name:
        scene.born(name)
    assert scene.snapshots.look().ready
    status = scene.memory.show_beside(scene.memory.system.template, child.pid)
    assert (scene.seen("template").pid, scene.seen("template").state) == (child.pid, "starting")
    status.set_state(ActorState.READY)
    seen = scene.snapshots.look().actors[-1]
    assert (seen.name, seen.kind, seen.state, seen.restarts) == ("template", "template", "ready", 0)
    scene.memory.show_beside(scene.memory.system.template, child.pid)
    assert scene.seen("template").restarts == 1
    child.kill()
    child.wait()
    assert scene.seen("template").state == "dead" and scene.snapshots.look().ready


def test_who_has_said_nothing_is_starting(scene: Scene) -> None:
    seen = scene.seen("worker")
    assert (seen.pid, seen.state, seen.heartbeat_s, seen.cpu_s, seen.memory_bytes) == (None, "starting", *[None] * 3)


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (ActorState.STARTING, "starting"),
        (ActorState.READY, "ready"),
        (ActorState.DRAINING, "draining"),
        (ActorState.STOPPED, "ended"),
    ],
)
def test_an_actor_says_how_it_is(scene: Scene, state: ActorState, name: str) -> None:
    scene.born("scheduler", state)
    seen = scene.seen("scheduler")
    assert (seen.state, seen.pid, seen.restarts) == (name, os.getpid(), 0)
    assert seen.heartbeat_s is not None and 0 <= seen.heartbeat_s < 60
    assert seen.cpu_s and seen.memory_bytes and seen.private_bytes
    assert seen.memory_bytes > seen.private_bytes > 1 << 20


def test_all_are_ready(scene: Scene) -> None:
    for name in scene.system.by_name:
        scene.born(name)
    assert scene.snapshots.look().ready


@pytest.mark.parametrize(("name", "limit_s"), [("scheduler", HANG_S), ("worker", STEP_S)])
def test_whose_heart_does_not_beat_hangs(scene: Scene, name: str, limit_s: float) -> None:
    scene.born(name)
    scene.set_word(name, HEARTBEAT, time.monotonic_ns() - int(limit_s / 2 * 1e9))
    assert scene.seen(name).state == "ready"
    scene.set_word(name, HEARTBEAT, time.monotonic_ns() - int((limit_s + 1) * 1e9))
    seen = scene.seen(name)
    assert seen.state == "hung" and seen.heartbeat_s and seen.heartbeat_s > limit_s
    scene.born(name, ActorState.STARTING)
    scene.set_word(name, HEARTBEAT, time.monotonic_ns() - int((limit_s + 1) * 1e9))
    assert scene.seen(name).state == "starting", "loading a model takes as long as it takes"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_stopped_and_dead_processes(scene: Scene, child: subprocess.Popen[bytes]) -> None:
    scene.born("frontend-0")
    scene.set_word("frontend-0", PID, child.pid)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert scene.seen("frontend-0").state == "stopped"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert scene.seen("frontend-0").state == "dead", "a zombie is"
    child.wait()
    assert view_process(child.pid) is None
    assert scene.seen("frontend-0").state == "dead"
    scene.snapshots.supervisor_pid = child.pid
    assert scene.seen("supervisor").state == "dead"


def test_one_that_is_left_down_is_dead(scene: Scene) -> None:
    """Until its next life is begun."""
    place = scene.system.by_name["renderer-1"].position
    scene.memory.raise_incarnation(scene.system.by_name["renderer-1"])
    for rests, state in ((True, "dead"), (False, "starting")):
        scene.memory.board.set_rests(place, rests)
        assert scene.seen("renderer-1").state == state
    assert not scene.memory.board.rests(place)


def test_a_new_life_is_a_restart(scene: Scene) -> None:
    scene.born("renderer-1")
    scene.memory.raise_incarnation(scene.system.by_name["renderer-1"])
    seen = scene.seen("renderer-1")
    assert (seen.restarts, seen.pid, seen.state) == (1, None, "starting") and seen.up_s < 60
    scene.born("renderer-1")
    assert (scene.seen("renderer-1").pid, scene.seen("renderer-1").state) == (os.getpid(), "ready")


def test_what_waits_in_a_mailbox_over_its_lanes(scene: Scene) -> None:
    first, second = scene.outbox("renderer-1", "scheduler"), scene.outbox("frontend-0", "scheduler")
    before = time.monotonic_ns()
    for outbox in (first, second, second):
        outbox.post(Admit([1]))
        assert outbox.flush()
    snapshot = scene.snapshots.look()
    scheduler = snapshot.actor("scheduler")
    lanes = {lane.source: lane for lane in snapshot.lanes if lane.target == "scheduler"}
    assert scheduler.waiting_records == scheduler.received_records == 3
    assert (
        scheduler.waiting_bytes == scheduler.received_bytes == sum(lane.waiting_bytes or 0 for lane in lanes.values())
    )
    assert [lanes[name].waiting_records for name in ("renderer-0", "renderer-1", "frontend-0")] == [0, 1, 2]
    assert lanes["renderer-0"].oldest_s is None
    assert scheduler.oldest_s == lanes["renderer-1"].oldest_s and scheduler.oldest_s is not None
    assert 0 <= scheduler.oldest_s <= (time.monotonic_ns() - before) / 1e9
    inbox = scene.inbox("scheduler")
    assert inbox.drain(lambda message: None) == 3
    inbox.commit()
    scheduler = scene.seen("scheduler")
    assert (scheduler.waiting_records, scheduler.waiting_bytes, scheduler.oldest_s) == (0, 0, None)
    assert scheduler.received_records == 3 and scheduler.received_bytes


def test_a_lane_that_cannot_be_read_is_unknown(scene: Scene) -> None:
    lane = scene.system.lanes[0]
    scene.memory.segment.words[lane.offset // 8] = 1
    seen = scene.snapshots.look().lanes[0]
    assert (seen.source, seen.target) == (lane.source, lane.target)
    assert (seen.sent_bytes, seen.waiting_records, seen.oldest_s) == (None, None, None)
    assert scene.seen(lane.target).waiting_records == 0


def test_gauges_have_their_names(scene: Scene) -> None:
    writer = scene.born("scheduler")
    writer.set_gauge(SchedulerGauge.WAITING, 7)
    writer.set_in_flight(5, 1)
    writer.give_up()
    seen = scene.seen("scheduler")
    assert seen.gauges["waiting"] == 7 and set(seen.gauges) == {gauge.name.lower() for gauge in SchedulerGauge}
    assert (seen.hand, seen.given_up) == (5, 1)
    assert scene.seen("renderer-0").gauges == {}


def test_histograms_of_all_actors_are_one(scene: Scene) -> None:
    spec = scene.system.by_name["frontend-0"]
    key = "vllm:time_to_first_token_seconds"
    scene.system.histograms(scene.memory.segment, spec)[key].observe(3_000_000, 2)
    counted = scene.snapshots.histograms()[key]
    assert (counted.total, counted.sum) == (2, 6_000_000)


def test_looking_writes_nothing(scene: Scene) -> None:
    scene.born("scheduler")
    outbox = scene.outbox("frontend-0", "scheduler")
    outbox.post(Cancel([1]))
    outbox.flush()
    before = bytes(scene.memory.segment.map)
    scene.snapshots.look()
    scene.snapshots.histograms()
    assert bytes(scene.memory.segment.map) == before


def test_a_name_may_hold_anything() -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) Z 1 (b', 0, 0, 0); print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        view = view_process(child.pid)
        assert view is not None and view.state in "RS" and 0 <= view.up_s < 60
        child.kill()
