"""The link: on the server it stands where the scheduler of an engine on another machine would stand, and is one to all
others. What it is sent goes on to the steward there (steward/actor.py); what comes from there it writes into this
server's request table, KV map and gauges, of which it is the writer in a scheduler's place. It plans nothing.

    engine word, log, cursors, finish, stamps of its slots     as a scheduler writes them (sequences.py)
    KV map of its engine                                       which blocks are cached there, by the numbers that they
                                                               have there; whose end was told; whether it is paused
    its line of the board                                      gauges.py; no KV memory while nobody computes there
    its troubles                                               remote_engine.py, which keeps what the steward tells

What happens if one dies, at any line:
    the link           its successor admits its slots from the table, connects, and names them: what runs there goes
                       on
    the steward        the connection ends. The next one has the same address; if it is there within PATIENCE_S what
                       runs is computed behind the prefixes that are cached there
    its worker         the steward says so: all goes on in other engines, by the engine word and Admit, in the order
                       that scheduler/recovery/handover.py argues; with the suspicion, if the worker died by itself. If
                       no other engine is up it stays, and that engine's own scheduler computes it again
    its scheduler      nothing is given away: its successor finds the KV
    the machine, or    after SILENT_S, or at once if the kernel there says so, all goes on in other engines. What the
    the way to it      engine still computes is dropped there: by name, if the way is there again, else after LEASE_S.
                       Tokens that come late are of nobody here, and are dropped
"""

from __future__ import annotations

import asyncio
import time

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.kv_map.pause import PauseState
from actorserve.shm.kv_map.profile import ProfileWords
from actorserve.shm.rings.mailbox import wake
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of

from ..engines.draining import Draining
from ..engines.ownership import Ownership
from ..engines.routing import EngineRouter
from ..protocol.kinds import SUPERVISOR
from ..protocol.messages import Admit, Advance, Cancel, Finish, Stopped, ToScheduler
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.adapters import AdapterRead, LoadAdapter, UnloadAdapter
from ..protocol.topics.administration import (
    Abort,
    Aborted,
    AskedOfEngine,
    CheckWeights,
    Pause,
    Profile,
    Profiled,
    Sleep,
)
from ..protocol.topics.calls import frontend_of_call
from ..runtime.in_flight import GivenUp, is_named, request_name
from ..runtime.loop import LoopActor, LoopTurns, run_loop
from ..runtime.process import Context
from ..runtime.profiling import change_profile
from ..scheduler.metrics.request_stats import RequestStats
from .adapters import LinkAdapters
from .administration import LinkAdministration
from .connection import EngineConnection
from .gauges import LinkGauges
from .giving import LinkGiver
from .idle import IdleEngines
from .profile import LinkProfile
from .remote_engine import RemoteEngine
from .sender import SequenceSender
from .sequences import Sequences
from .unheeded import Unheeded

PATIENCE_S = 0.4  # for an engine whose connection has just ended, or was not there yet in this life
LOOK_S = 0.05


class LinkActor(LoopActor):
    """One engine elsewhere."""

    def __init__(self, context: Context) -> None:
        self._context, self._table = context, context.table
        system = context.system
        self._engine = context.spec.engine
        self._kv = KVMap(context.segment.map, system.kv_map_offsets[self._engine], *system.kv_map_sizes)
        self._kv.begin(0, 0)
        most = context.config.max_num_seqs + system.max_queued
        stats = RequestStats(context.table, context.histograms)
        area = Logprobs(context.files["logprobs"], *system.files.logprobs)
        self.sequences = Sequences(context.table, self._kv, stats, area, most, context.incarnation)
        self.sequences.pooled = None if context.model.pooling is None else context.vectors()
        address = context.config.remote_engines[self._engine - system.remote_engines.start]
        self._profile = LinkProfile(context)
        self.adapters = LinkAdapters(context, address)
        self._unheeded = Unheeded(context)
        self._sender = SequenceSender(self.sequences, self.adapters, self._unheeded)
        self.sequences.drop = self._sender.drop
        self.sequences.knows_adapter = self.adapters.knows
        self.sequences.adapter_of = lambda ref: self.adapters.adapter_of(context.table, ref)
        before = context.board.gauges(context.spec.position)
        self._gauges = LinkGauges(self.sequences, context.status, before)
        self._ownership = Ownership(context)
        self._giver = LinkGiver(context, self.sequences, self._ownership)
        self._idle = IdleEngines(context)
        self._remote = RemoteEngine(context, self._kv, self._gauges)
        self._was = False, self._kv.pause.state, self._kv.sleep.state.is_parked  # as others have seen it
        self._patient_until = time.monotonic() + PATIENCE_S
        refs = self._ownership.own(context.table.current_refs(0, context.table.slots), Admit)
        for ref in sorted(refs, key=context.table.arrival_ns):
            self._admit(ref, recovers=True)

    def open(self, turns: LoopTurns) -> None:
        """Begin to connect."""
        self._loop = asyncio.get_running_loop()
        context = self._context
        self.connection = EngineConnection(context, self._heard, self._met, self._lost, turns.turn)
        draining = Draining(context, EngineRouter(context))
        asked = self.connection.name, lambda: self.connection.is_parked, draining.others_end
        self.administration = LinkAdministration(context, self._kv, *asked, self._giver.others_will)
        self._turns = turns
        self._connecting = self._loop.create_task(self.connection.run())
        self._connecting.add_done_callback(lambda task: task.cancelled() or task.result())
        self._look()

    def _look(self) -> None:
        self._loop.call_later(LOOK_S, self._look)
        if (channel := self.connection.channel) is not None:
            channel.look()
        self.administration.look()
        self.adapters.look()
        self._profile.look(channel)
        if self._is != self._was or (self.sequences.held and (self._unheeded.waits or not self._is_up)):
            self._turns.turn()

    # --- messages of this server ---------------------------------------------------------------------------------

    def handle(self, message: ToScheduler) -> None:
        """As a scheduler does; each may come twice."""
        sequences = self.sequences
        match message:
            case Admit():
                for ref in self._ownership.own(message.refs, Admit):
                    self._admit(ref)
            case Cancel():
                for ref in self._ownership.own(message.refs, Cancel):
                    if self._table.is_cancelled(ref):
                        sequences.end(ref, Finish.ABORT)
            case Stopped():
                for ref in self._ownership.own(message.refs, Stopped):
                    sequences.end(ref, Finish.STOP_STRING)
            case Profile():
                self._begin_profile(message)
            case LoadAdapter() | UnloadAdapter():
                self.adapters.handle(message)
            case Abort():
                table, names = self._table, message.request_ids
                refs = [ref for ref in sequences.held if message.every or is_named(table, ref, names)]
                for ref in refs:
                    sequences.end(ref, Finish.ABORT)
                name = f"frontend-{frontend_of_call(message.call)}"
                self._context.post(name, Aborted(message.call, len(refs)))
            case Pause() | Sleep():
                if message.mode == "abort":
                    for ref in list(sequences.held):
                        sequences.end(ref, Finish.ABORT)
                self.administration.ask(message)
            case _ if isinstance(message, AskedOfEngine | CheckWeights):
                self.administration.ask(message)
            case _:
                self._context.log.error("%s: not for an engine on another machine", type(message).__name__)

    def _begin_profile(self, message: Profile) -> None:
        """Where this is the first engine: of all actors here, who look at the words, and of all engines elsewhere."""
        words = ProfileWords(self._context.segment.words, self._context.system.kv_map_offsets[0])
        number = change_profile(words, message.seconds)
        for fd in self._context.eventfds.values():
            wake(fd)
        self._context.post(f"frontend-{frontend_of_call(message.call)}", Profiled(message.call, number))

    def _admit(self, ref: int, recovers: bool = False) -> None:
        """A sequence of which links die must not take the server with it."""
        try:
            with self._context.in_flight.hold(ref):
                self.sequences.admit(ref, recovers)
        except GivenUp:
            self._context.log.error("%s is given up: links died on it", request_name(self._table, ref))
            self.sequences.refuse(ref)

    # --- the engine ----------------------------------------------------------------------------------------------

    @property
    def _is_up(self) -> bool:
        """Does it compute?"""
        return self.connection.channel is not None and self._remote.worker > 0

    @property
    def _is(self) -> tuple[bool, PauseState, bool]:
        """Whether the engine computes, and what it was told."""
        return self._is_up, self._kv.pause.state, self._kv.sleep.state.is_parked

    def _met(self, welcome: wire.Welcome) -> None:
        """It is connected. What was asked stands before what is to be computed behind it."""
        assert self.connection.channel is not None
        self._sender.met(welcome.slots)
        self._unheeded.met(welcome.unheeded, self.connection.name, self.sequences.held.values())
        self.administration.met(self.connection.channel)
        self.adapters.met()
        self._context.log.info("engine %d at %s is there", self._engine, self.connection.name)

    def _lost(self, why: str) -> None:
        """It is gone, or was not there: patience is for one that was there a moment ago."""
        self.administration.lost(why)
        was_up = self._remote.worker > 0
        self._remote.lost("" if self.connection.is_parked else why)
        self._sender.lost()
        now = time.monotonic()
        if was_up:
            self._gauges.losses += 1
            at_once = "nothing was heard" in why
            self._patient_until = now if at_once else now + PATIENCE_S
            self._context.log.warning("engine %d at %s is gone: %s", self._engine, self.connection.name, why)
        elif "refused" in why:
            self._patient_until = now

    def _heard(self, record: object) -> None:
        channel = self.connection.channel
        assert channel is not None
        try:
            self._take(record)
        except (ValueError, IndexError) as error:
            channel.close(f"what it says cannot be: {error}")

    def _take(self, record: object) -> None:
        match record:
            case wire.Progress():
                self.sequences.progress(record)
            case wire.Logprobs():
                self.sequences.logprobs(record)
            case wire.Vectors():
                self.sequences.vectors(record)
            case wire.ProfilePart():
                self._profile.take(record)
            case wire.Engine():
                self._take_engine(record)
            case wire.Cached():
                self._remote.take_cached(record)
            case wire.Turned():
                self._sender.turned(record.refs)
            case AdapterRead():
                self.adapters.has_read(record)
            case _ if isinstance(record, wire.Answers):
                self.administration.answered(record)
            case _:
                raise ValueError(f"a {type(record).__name__}")

    def _take_engine(self, record: wire.Engine) -> None:
        self._remote.take(record, self.administration.trouble_with(record))
        for ref in self.sequences.blame(record.suspects):
            self._context.status.give_up()
            self._context.log.error("%s is given up: workers died on it", request_name(self._table, ref))

    # --- its turns -----------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        """Send what is to be computed, give away what cannot be, tell detokenizers what moved."""
        if self.sequences.held and not self._is_up:
            if self.connection.channel is not None or time.monotonic() >= self._patient_until:
                self._giver.give_all()  # this one may be back in a moment
        elif self.sequences.held:
            self._giver.share(self._gauges.waiting)
        channel = self.connection.channel
        if self.adapters.enabled:
            self.adapters.turn(self.sequences.held, channel)
            self._giver.leave(self.adapters.missing)
        self._unheeded.turn(self.sequences.held, self._giver)
        if channel is not None and channel.is_writable:
            self._sender.send(channel)
        done = self._post_moved()
        self._gauges.write(self._is_up, 0 if channel is None else channel.way_ns)
        if self._is != self._was or (self.sequences.held and self._idle.sleep):
            self._was = self._is
            self._wake_others()
        return done

    def _wake_others(self) -> None:
        """Who waits for an engine: to give to it, to be ready, to wake with it, or for the end of what it has begun."""
        for name in (SUPERVISOR, *self._context.system.schedulers):
            if name != self._context.name:
                wake(self._context.eventfds[name])

    def _post_moved(self) -> int:
        moved = list(self.sequences.moved)
        self.sequences.moved.clear()
        by_reader: dict[str, list[int]] = {}
        for ref in moved:
            by_reader.setdefault(self._context.system.detokenizer_of(slot_of(ref)), []).append(ref)
        for name, refs in by_reader.items():
            self._context.post_refs(name, Advance, refs)
        return len(moved)

    def published(self) -> int:
        """The Advances are in the lanes."""
        self.sequences.published()
        self.adapters.published()
        return 0


def main(context: Context) -> None:
    """Run the link until it is told to stop."""
    actor = LinkActor(context)
    run_loop(context, actor, actor.open)
