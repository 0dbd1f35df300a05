"""What the supervisor makes before any actor is started: segment, board, request table, wake-up descriptors.

It writes only its own line of the board: which incarnation of each actor counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from actorserve.shm.board.board import ActorState, Board, BoardWriter, Order, Parked
from actorserve.shm.board.startup import PhaseWriter
from actorserve.shm.engine_places import EnginePlaces
from actorserve.shm.journals.keyed_log import KeyedLog
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal
from actorserve.shm.kernels import KernelsFile
from actorserve.shm.kv_map.notes import BlockNotes
from actorserve.shm.kv_map.sleep import UNTIL_ASKED, Part, SleepWord
from actorserve.shm.kv_tier.layout import create_tier
from actorserve.shm.media.arena import MediaArena
from actorserve.shm.media.inbox import MediaInbox
from actorserve.shm.pages import can_give_back
from actorserve.shm.rings.mailbox import wake
from actorserve.shm.segment import Segment
from actorserve.shm.table.hidden_states import HiddenStates
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.mirostat import MirostatStates
from actorserve.shm.table.prompt_embeds import PromptEmbeds
from actorserve.shm.table.table import RequestTable
from actorserve.shm.table.vectors import Vectors
from actorserve.shm.weights import WeightsRecord

from ..files.owner import SECRET_BYTES
from ..options.also import loaded_at_start
from ..protocol.actor_spec import ActorSpec
from ..protocol.file_sizes import SECRET
from ..protocol.kinds import SUPERVISOR, kind_of
from ..protocol.sockets.keeper_wire import KEEPER, listen_here
from ..protocol.topology import System
from ..runtime.descriptors import memory_file
from ..runtime.in_flight import Ended
from ..runtime.process import Boot
from ..telemetry.discovery import Description, publish, without_secrets
from ..telemetry.gauges import SchedulerGauge, WorkerGauge
from ..telemetry.snapshot import phases_of
from ..telemetry.startup import StartPhase, describe_phases
from .key_file import PublishedKeys

log = logging.getLogger("memory")

ASLEEP = UNTIL_ASKED._replace(asleep=Part.ALL)
NEEDS_LESS = "a smaller --max-num-queued-reqs, --max-num-seqs or --max-model-len needs less"  # where there is no room
KEPT = (
    "this kernel has no MADV_REMOVE (gVisor has none): memory that long requests, logprobs, vectors and pictures have "
    "taken stays taken, for the next ones"
)


class Memory:
    """One segment, sparse files of memory, and one eventfd an actor: descriptors that actors inherit, without names."""

    def __init__(self, system: System, began: int | None = None) -> None:
        """`began`: when the server's start did, CLOCK_MONOTONIC ns; without it, now."""
        self.system = system
        began = time.monotonic_ns() if began is None else began
        self.segment = Segment.create(system.size, "lanes and request table")
        self.board = Board(self.segment, system.board_offset, system.board_blocks)
        self._phases = PhaseWriter(self.segment, system.phase_offsets[SUPERVISOR], began)
        self.loaded = loaded_at_start(system.config)  # the numbers of models
        self._let_sleep()
        RequestTable.create(self.segment, system.table_offset, *system.table_sizes)
        self.files = _files(system)
        names = [*system.by_name, SUPERVISOR]
        self.eventfds = {name: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for name in names}
        self.keys = PublishedKeys(system, self.segment)
        self.description_fd = -1
        self.control = ""  # the name of the control socket, once there is one
        for actor in system.actors:
            self.raise_incarnation(actor)
        if not can_give_back():
            log.warning("%s", KEPT)

    def _let_sleep(self) -> None:
        """Models that are loaded once they are asked."""
        for engine in (engine for one in self.system.models if one.index not in self.loaded for engine in one.engines):
            SleepWord(self.segment.map, self.system.kv_map_offsets[engine]).state = ASLEEP

    def describe(self, url: str, port: int) -> None:
        """Let observers find all this through /proc."""
        description = Description(
            pid=os.getpid(),
            url=url,
            port=port,
            started_ns=time.monotonic_ns(),
            config=without_secrets(self.system.config),
            model=self.system.model,
            also=[one.info for one in self.system.models[1:]],
            segment_fd=self.segment.fd,
            segment_bytes=self.system.size,
            files=self.files,
        )
        self.description_fd = publish(description)

    def boot(self, actor: ActorSpec, channel: int | None = None) -> Boot:
        """What the next life of this actor is told."""
        return Boot(
            name=actor.name,
            incarnation=self.board.incarnation(actor.position),
            supervisor_pid=os.getpid(),
            config=self.system.config,
            model=self.system.model,
            also=[one.info for one in self.system.models[1:]],
            segment_fd=self.segment.fd,
            files=self.files,
            eventfds=self.eventfds,
            channel=channel,
            control=self.control,
        )

    def raise_incarnation(self, actor: ActorSpec, ended: Ended = Ended.NEVER, renewed: bool = False) -> None:
        """From now on what an earlier life of the actor wrote on its line of the board counts no more.

        `ended` tells the next one how that life ended; `renewed`: it did to be replaced, and has not died.
        """
        place, life = actor.position, self.board.incarnation(actor.position)
        self.board.set_ended(place, ended)
        self.board.set_renewals(place, life + 1, self.board.renewals(place, life) + renewed)
        self.board.set_incarnation(place, life + 1)

    def show_beside(self, spec: ActorSpec, pid: int) -> BoardWriter:
        """This process is this template or relay from now on. It uses no memory: its words are written here."""
        self.raise_incarnation(spec)
        return BoardWriter(self.board, spec.position, kept=kind_of(spec.kind).kept, pid=pid)

    def order(self, actor: ActorSpec, order: Order, left: int = 0) -> None:
        """Tell an actor, in this life of it and in those to come; who gives up already goes on with that. `left`: the
        requests that it gives up.
        """
        if self.board.order(actor.position) is Order.GIVE_UP:
            return
        self.board.set_order(actor.position, order, left)
        wake(self.eventfds[actor.name])

    def park(self, actor: ActorSpec, why: Parked) -> None:
        """Say why no life of it is wanted, if so; all look, since it may be who they wait for."""
        self.board.set_parked(actor.position, why)
        self.wake_all()

    def is_wanted(self, actor: ActorSpec) -> None:
        """It was parked, and is started now: its life counts from here, not from the end of the one before."""
        self.board.set_started(actor.position)

    def forget_kv(self, worker: ActorSpec) -> None:
        """What the KV memory of one that has no life now held takes no memory any more."""
        os.ftruncate(self.files[f"kv-{worker.name}"], 0)

    def is_ready(self, actor: ActorSpec) -> bool:
        """The life that counts has said that it is ready."""
        return self.board.is_ready(actor.position)

    def is_draining(self, actor: ActorSpec) -> bool:
        """It ends once it has answered what it has."""
        return self.board.snapshot(actor.position).state is ActorState.DRAINING

    def facts(self) -> str:
        """What is served, for a line of the log."""
        return "; ".join(
            f"model {one.name}, {self.kv_tokens(one.index)} tokens of KV memory"
            if one.index in self.loaded
            else f"model {one.name}, which is loaded once it is asked for"
            for one in self.system.models
        )

    def kv_tokens(self, model: int) -> int:
        """How many tokens a model's KV memory holds in all engines; of workers that share it each has a part of all."""
        reporters = filter(self.system.is_reporter, self.system.of_kind("worker"))
        own = (worker for worker in reporters if worker.model == model)
        there = (worker.position for worker in own if not self.board.is_parked(worker.position))
        links = (one.position for one in self.system.of_kind("scheduler") if one.engine in self.system.remote_engines)
        elsewhere = sum(self.board.gauge(position, SchedulerGauge.BLOCKS_TOTAL) for position in links)
        here = sum(self.board.gauge(position, WorkerGauge.KV_TOKENS) for position in there)
        return here + elsewhere * self.system.config.block_size

    def phase_ends(self, phase: StartPhase, now: int | None = None) -> None:
        """Of the server's start."""
        self._phases.end(phase, time.monotonic_ns() if now is None else now)

    def how_long(self, name: str = SUPERVISOR) -> str:
        """The start of the server or of an actor up to now, for a line of the log."""
        return describe_phases(phases_of(self.system, self.segment, self.board, name))

    @property
    def inherited(self) -> list[int]:
        """The descriptors that every actor has under the same numbers."""
        return [self.segment.fd, *self.files.values(), *self.eventfds.values()]

    def wake_all(self) -> None:
        """After a death: its neighbours may wait for a wake-up that it owed them."""
        for fd in self.eventfds.values():
            wake(fd)

    def clear_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody has woken us meanwhile
            os.eventfd_read(self.eventfds[SUPERVISOR])

    def close(self) -> None:
        for fd in (*self.eventfds.values(), *self.files.values()):
            os.close(fd)
        if self.description_fd >= 0:
            os.close(self.description_fd)
        self.segment.close()


def _files(system: System) -> dict[str, int]:
    """What is memory of its own, by name; much of it is of an option."""
    files = {
        "journal": RequestJournal.create(*system.files.journal),
        "answers": ResponseJournal.create(system.files.answers),
        "recent": KeyedLog.create(*system.files.recent),
        **{name: os.memfd_create("actorserve-meeting", os.MFD_CLOEXEC) for name in system.meetings},
        **{
            f"kv-{worker.name}": os.memfd_create("actorserve-kv", os.MFD_CLOEXEC) for worker in system.of_kind("worker")
        },
        "kernels": KernelsFile.create(),
        "weights": WeightsRecord.create(len(system.engines)),
        "logprobs": Logprobs.create(*system.files.logprobs),
        "mirostat": MirostatStates.create(system.slots),
    }
    if system.config.uses_ray:
        files["places"] = EnginePlaces.create(len(system.remote_engines))
    if system.config.has_batches:
        files[SECRET] = memory_file(os.urandom(SECRET_BYTES))
    if system.config.keep_kv:
        files[KEEPER] = listen_here().detach()
    if system.files.kv_notes is not None:
        files["kv_notes"] = BlockNotes.create(system.files.kv_notes)
    if system.files.kv_tier is not None:
        files["kv_tier"] = create_tier(system.files.kv_tier)
    if system.files.vectors is not None:
        files["vectors"] = Vectors.create(*system.files.vectors)
    if system.files.media is not None:
        files["media"] = MediaArena.create(system.files.media)
        files["media_inbox"] = MediaInbox.create(*system.files.media_inbox)
    if system.files.sounds is not None:
        files["sounds"] = Vectors.create(*system.files.sounds)
    if system.files.prompt_embeds is not None:
        files["prompt_embeds"] = PromptEmbeds.create(*system.files.prompt_embeds)
    if system.files.hidden_states is not None:
        files["hidden_states"] = HiddenStates.create(*system.files.hidden_states)
    return files
