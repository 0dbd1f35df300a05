"""What every actor process has in common: how it starts, its loop, and how it ends.

The supervisor starts `python -m actorserve.actors.runtime.process` with a Boot on standard input; the actor attaches to
shared memory, sets its name for `ps`, dies with its supervisor, and runs `main(context)` of its own module.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from enum import IntEnum
from time import monotonic_ns
from typing import Any, NoReturn

import msgspec

from actorserve.shm.board.board import ActorState, Board, BoardWriter, Order
from actorserve.shm.board.startup import PhaseWriter
from actorserve.shm.kv_map.profile import ProfileWords
from actorserve.shm.rings.mailbox import Inbox, Outbox, wake
from actorserve.shm.rings.ring import Consumer, Producer
from actorserve.shm.rings.trace_ring import TraceWriter
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable

from ..model.info import ModelInfo
from ..options.config import Config, ConfigError
from ..protocol import messages
from ..protocol.actor_spec import ActorSpec, Lane
from ..protocol.kinds import SUPERVISOR
from ..protocol.topology import System
from ..telemetry.log_format import log_to_stderr
from ..telemetry.startup import StartPhase
from ..telemetry.trace_events import EventKind, hearer
from .dump import write_dump
from .in_flight import Ended, InFlight
from .memory_files import MemoryFiles
from .profiling import ProfileWatch
from .signals import die_with_supervisor, fail_on_purpose, leave_signals_to_supervisor

RENEW = 75  # exit status: it has done what it had in hand, and is to be replaced, which is nobody's mistake
IDLE_S = 1.0  # an idle actor turns its loop at least so often, to beat
MOST_REFS = 1 << 14  # that one message names
FULL_LANE_S = 0.001  # a lane is full: its reader gives no sign when there is room again


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a new actor process is told. Descriptors are inherited under their numbers."""

    name: str
    incarnation: int
    supervisor_pid: int
    config: Config
    model: ModelInfo
    also: list[ModelInfo] = []  # those of --also
    segment_fd: int
    # memory files: journal, answers, recent, logprobs, meeting; by the model: vectors, sounds, media, prompt_embeds;
    # by the options: hidden_states
    files: dict[str, int]
    eventfds: dict[str, int]  # of every actor, and of the supervisor
    channel: int | None = None  # on which a frontend is handed its connections
    control: str = ""  # the abstract name of the supervisor's control socket


class Context(MemoryFiles):
    """One actor's connections: the table, the board, its inbox and an outbox for each lane that it feeds."""

    def __init__(self, boot: Boot) -> None:
        self.system = System(boot.config, boot.model, boot.also)
        self.spec: ActorSpec = self.system.by_name[boot.name]
        self.served = self.system.models[self.spec.model]  # the model that it is for; of the server's own the first
        self.config, self.model = self.served.config, self.served.info
        self.name = boot.name
        self.incarnation = boot.incarnation
        self.log = logging.getLogger(boot.name)
        self.segment = Segment.attach(boot.segment_fd)
        self.board = Board(self.segment, self.system.board_offset, self.system.board_blocks)
        last_beat = self.board.last_heartbeat(self.spec.position)
        self.status = BoardWriter(self.board, self.spec.position, boot.incarnation, self.spec.traits.kept)
        began = self.board.snapshot(self.spec.position).started_ns
        self._phases = PhaseWriter(self.segment, self.system.phase_offsets[self.name], began)
        self.in_flight = InFlight(self.status, Ended(self.board.ended(self.spec.position)))
        self.table = RequestTable.attach(self.segment, self.system.table_offset)
        self.histograms = self.system.histograms(self.segment, self.spec)
        self.eventfds = boot.eventfds
        self.supervisor = boot.supervisor_pid, boot.control
        self.files = boot.files
        self.channel = None if boot.channel is None else socket.socket(fileno=boot.channel)
        self.stopping = False
        self.kept_since = 0  # of a worker: the first life in whose KV memory this one is; 0: it has its own
        self.trace = TraceWriter(self.segment, self.system.trace_offsets[self.name])
        ended = self.board.ended(self.spec.position)
        self.trace.add(monotonic_ns(), EventKind.STARTED, boot.incarnation, last_beat, ended)
        words = ProfileWords(self.segment.words, self.system.kv_map_offsets[0])
        self.profile = ProfileWatch(words, boot.config.profile_dir, boot.name, boot.incarnation)
        self.inbox = self._inbox()
        self.inbox.heard = hearer(self.trace)
        self.outboxes = {lane.target: self._outbox(lane) for lane in self.system.lanes if lane.source == self.name}
        if "steward" in self.outboxes:  # which asks for all frontends elsewhere
            self.outboxes["frontend-0"] = self.outboxes["steward"]

    def _outbox(self, lane: Lane) -> Outbox:
        first, *others = [(self.system.mailbox_offsets[name], self.eventfds[name]) for name in lane.readers]
        return Outbox(Producer(self.segment, lane.offset, lane.capacity, len(lane.readers)), *first, others)

    def _inbox(self) -> Inbox:
        lanes = {
            lane.source: Consumer(
                self.segment, lane.offset, lane.capacity, len(lane.readers), lane.readers.index(self.name)
            )
            for lane in self.system.lanes
            if self.name in lane.readers
        }
        sleeping = self.system.mailbox_offsets[self.name]
        return Inbox(self.segment, sleeping, lanes, self.eventfds[self.name], self.spec.traits.receives)

    def post(self, target: str, message: messages.Message) -> None:
        """Queue a message for another actor; `flush` sends all of a turn's messages as one record a lane.

        `target` is that of a lane: an actor's name, or the kind's for all of a group.
        """
        self.outboxes[target].post(message)

    def post_refs(self, target: str, make: Callable[[list[int]], messages.Message], refs: list[int]) -> None:
        """Queue messages that name these slots, however many they are."""
        for start in range(0, len(refs), MOST_REFS):
            self.post(target, make(refs[start : start + MOST_REFS]))

    def post_to_owners(self, make: Callable[[list[int]], messages.Message], refs: list[int]) -> None:
        """Queue messages of these slots for the schedulers of the engines that they belong to now. A scheduler that
        has given one away meanwhile passes on what it gets.
        """
        if len(self.system.schedulers) == 1:
            self.post_refs(self.system.schedulers[0], make, refs)
            return
        owned: dict[str, list[int]] = {}
        for ref in refs:
            scheduler = self.system.scheduler_of(self.table.engine(ref), self.table.model(ref))
            owned.setdefault(scheduler, []).append(ref)
        for scheduler, some in owned.items():
            self.post_refs(scheduler, make, some)

    def post_alone(self, target: str, message: messages.Message) -> None:
        """As a record of its own: if its reader dies on this one, it need not do others again."""
        self.post(target, message)
        self.outboxes[target].flush()

    def flush(self) -> bool:
        """Publish what is queued; False if a lane is full and something is left for the next turn."""
        done = True
        for outbox in self.outboxes.values():
            done = outbox.flush() and done
        return done

    def close(self) -> None:
        """Give all lanes up, as the kernel does when the process dies."""
        self.inbox.close()
        for outbox in self.outboxes.values():
            outbox.close()

    def phase_ends(self, phase: IntEnum, now: int | None = None) -> None:
        """Of this actor's start: for /metrics and for whoever waits."""
        self._phases.end(phase, monotonic_ns() if now is None else now)

    def set_state(self, state: ActorState) -> None:
        """Change this actor's state on the board and let the supervisor look."""
        if state is ActorState.READY:
            self.phase_ends(StartPhase.SET_UP)
        self.status.set_state(state)
        wake(self.eventfds[SUPERVISOR])

    @property
    def is_asked_to_end(self) -> bool:
        """Does the supervisor want this life to end? A SIGTERM may be anybody's."""
        return self.board.order(self.spec.position) is not Order.NONE

    def request_stop(self) -> None:
        """End the loop after this turn (SIGTERM)."""
        self.stopping = True
        wake(self.eventfds[self.name])


class Actor:
    """A blocking actor: it handles one message at a time and may have work of its own between them."""

    wait_s = IDLE_S  # how long it may sleep where nothing comes
    one_record = False  # a turn handles one record only, so that whoever dies in the next one need not do it again

    def handle(self, message: Any) -> None:
        """One message; it may come twice, since a predecessor may have handled it and died before it was committed."""
        raise NotImplementedError(f"{type(self).__name__} handles no message")

    def do_work(self) -> int:
        """All there is to do beyond messages; returns how much was done. What it leaves has to wait for the next turn,
        which comes with a message, or after `wait_s`.
        """
        return 0

    def published(self) -> None:
        """All that was posted so far is in the lanes: cursors that say so may move now."""

    def about_failure(self) -> dict[str, Any]:
        """For the dump of an error (dump.py): what it was about to do, without texts and tokens."""
        return {}


def run(actor: Actor, context: Context) -> None:
    """The loop of a blocking actor: handle what came, work, publish, beat, sleep where nothing has come meanwhile.

    An exception ends the process: its supervisor restarts it, and what was not committed is delivered again.
    """
    context.set_state(ActorState.READY)
    try:
        _run_turns(actor, context)
    except Exception as error:
        write_dump(context, error, actor.about_failure())
        raise


def _run_turns(actor: Actor, context: Context) -> None:
    add, turn = context.trace.add, int(EventKind.TURN)
    while not context.stopping:
        began = monotonic_ns()
        done = context.inbox.drain(actor.handle, actor.one_record)
        done += actor.do_work()
        flushed = context.flush()
        if flushed:  # what the messages caused is published: now, and not before, they need not come again
            actor.published()
            context.inbox.commit()
        context.status.beat()
        context.profile.look()
        if done:
            now = monotonic_ns()
            add(now, turn, now - began, done)
        context.inbox.wait(actor.wait_s if flushed else FULL_LANE_S)


def main(play: Callable[[Context], None] | None = None, channel: int | None = None) -> None:
    """Become the actor that standard input describes; `play` stands in for its own module's main.

    `channel` is the descriptor of its channel, where that has not kept the number that the Boot names.
    """
    began = monotonic_ns()
    with open(0, "rb", closefd=False) as told:
        boot = msgspec.msgpack.decode(told.read(), type=Boot)
    if channel is not None:
        boot = msgspec.structs.replace(boot, channel=channel)
    die_with_supervisor(boot.supervisor_pid)
    leave_signals_to_supervisor()
    log_to_stderr(boot.config.log_level, boot.config.log_format, boot.name)
    from setproctitle import setproctitle

    setproctitle(f"actorserve: {boot.name}")
    context = Context(boot)
    context.phase_ends(StartPhase.SPAWN, began)
    if boot.config.debug:
        signal.signal(signal.SIGUSR1, fail_on_purpose)
    signal.signal(signal.SIGTERM, lambda *_: context.request_stop())
    try:
        play = play or importlib.import_module(context.spec.module).main
        context.phase_ends(StartPhase.IMPORTS)
        play(context)
    except ConfigError as error:  # the options do not fit what this actor found, e.g. in the model's files
        print(error, file=sys.stderr)
        sys.exit(error.status)
    context.set_state(ActorState.STOPPED)


def live(channel: int | None = None, play: Callable[[Context], None] | None = None) -> NoReturn:
    """The whole life of an actor's process, which ends here: to take the interpreter down, and with it all that torch
    has brought, would take a tenth of a second, and give nothing back that the kernel does not. As for `main`.
    """
    status = 1
    try:
        main(play, channel)
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    live()
