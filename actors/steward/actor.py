"""The steward: on a machine that computes for servers elsewhere it stands where frontends, renderers and detokenizers
stand. Its scheduler and workers are those of any engine, and know nothing of it.

Each server that is connected has a session (session.py). What it begins gets a slot of this machine's request table
(sequences.py), written as a frontend and a renderer write it, with the tokens that it has already as `given`; from then
on the table is the truth here. Who writes what: the steward what frontend, renderer and detokenizer write of a slot;
all else as in any server. Which sequence is whose stands in the steward's memory alone.

What happens if one dies, at any line:
    this machine's worker or scheduler   as in any server; the steward tells that there is no worker, and a server that
                                         has another engine takes its sequences there
    the steward                          its connections end; its successor ends whatever it finds in the table, and
                                         is told anew what is wanted: that is computed behind the prefix that the
                                         cache has of it. Between a slot's parameters and its prompt it was never
                                         admitted, and is free; behind the prompt it is admitted, and ended by its
                                         cancel word
    the server's link                    its successor connects, and names what it wants: that goes on where it is,
                                         and what the server has not got of it is said again
    the server, or the way to it         the session waits for LEASE_S, then all of it ends. Silence of SILENT_S is a
                                         death; a connection that is still there then is ended
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

import msgspec

from actorserve.shm.kv_map.reader import CachedBlocks

from ..engines.channel import Channel
from ..protocol.messages import Advance, ToSteward
from ..protocol.sockets import engine_wire as wire
from ..protocol.sockets.node_wire import prepare
from ..protocol.topics.adapters import AdapterChanged, DropAdapter
from ..protocol.topics.administration import AskedOfEngine, CheckWeights, Profiled
from ..runtime.loop import LoopActor, LoopTurns, run_loop
from ..runtime.process import Context
from .adapters import StewardAdapters
from .administration import StewardAdministration
from .engine import EngineState
from .handshake import Handshakes
from .profile import StewardProfile
from .sequences import HostedSequences
from .session import Session, cached_since

LOOK_S = 0.05  # between two looks at gauges and at what is cached
MOST_SERVERS = 64
LISTENER = "steward"  # of the files that actors inherit


class StewardActor(LoopActor):
    """One engine, for servers elsewhere."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._handshakes = Handshakes(context)
        self._engine = EngineState(context)
        self._sessions: dict[str, Session] = {}
        self._by_channel: dict[Channel, Session] = {}
        self._profile = StewardProfile(context)
        self._administration, self._adapters = StewardAdministration(context), StewardAdapters(context)
        self._sequences = HostedSequences(context, self._adapters)

    # --- connections ---------------------------------------------------------------------------------------------

    def open(self, turns: LoopTurns) -> None:
        """Listen, on the supervisor's socket, so that who comes between two lives waits."""
        self._loop, self._turns = asyncio.get_running_loop(), turns
        listener = socket.socket(fileno=os.dup(self._context.files[LISTENER]))
        listener.setblocking(False)
        self._server = self._loop.create_task(self._listen(listener))
        self._server.add_done_callback(lambda task: task.cancelled() or task.result())
        self._look()

    async def _listen(self, listener: socket.socket) -> None:
        await self._loop.create_server(
            self._channel, sock=prepare(listener), ssl=self._handshakes.tls, ssl_handshake_timeout=wire.PROVE_S
        )

    def _channel(self) -> Channel:
        return Channel(wire.ToSteward, self._heard, self._lost, self._turns.turn, self._handshakes.begin)

    def _lost(self, channel: Channel, why: str) -> None:
        self._handshakes.end(channel)
        session = self._by_channel.pop(channel, None)
        if session is not None and session.channel is channel:
            session.disconnect()
            self._context.log.warning("the server at %s is gone: %s", channel.peer, why)

    def _heard(self, channel: Channel, record: object) -> None:
        session = self._by_channel.get(channel)
        try:
            if session is None or session.channel is not channel:
                self._meet(channel, record)
            else:
                self._take(session, channel, record)
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            channel.close(f"what it says cannot be: {error}")

    def _take(self, session: Session, channel: Channel, record: object) -> None:
        match record:
            case wire.Begin():
                self._sequences.begin(session, record)
            case wire.AllBegun():
                self._sequences.all_begun(session)
            case wire.Drop():
                self._sequences.drop(session, record.refs)
            case wire.Adapter():
                self._adapters.read(session, channel, record)
            case DropAdapter():
                self._adapters.drop(session, {record.adapter})
            case wire.ProfileEngine():
                self._profile.ask(channel, record)
            case CheckWeights() | wire.LoadWeights():
                self._administration.weigh(channel, record)
            case _ if isinstance(record, AskedOfEngine):
                self._administration.ask(channel, record)
            case _:
                channel.close(f"a {type(record).__name__} is no part of this")

    def _meet(self, channel: Channel, record: object) -> None:
        greeting = self._handshakes.meet(channel, record)
        if greeting is None:
            return
        if trouble := self._no_place_for(greeting):
            self._handshakes.refuse(channel, trouble)
        else:
            self._welcome(channel, greeting)

    def _no_place_for(self, greeting: wire.Greeting) -> str:
        known = self._sessions.get(greeting.server)
        if known is not None and known.engine != greeting.engine:
            return f"this is its engine {known.engine} already, by another address"
        return "there are too many servers" if known is None and len(self._sessions) >= MOST_SERVERS else ""

    def _welcome(self, channel: Channel, greeting: wire.Greeting) -> None:
        session = self._sessions.setdefault(greeting.server, Session(greeting.server, greeting.engine))
        system = self._context.system
        reader = CachedBlocks(self._context.segment, system.kv_map_offsets[0], system.kv_map_sizes)
        session.connect(channel, reader)
        self._by_channel[channel] = session
        channel.trust()
        channel.send(self._handshakes.welcome(greeting, self._sequences.num_free + len(session.sequences)))
        self._context.log.info("the server at %s is there: this is its engine %d", channel.peer, greeting.engine)

    # --- its turns -----------------------------------------------------------------------------------------------

    def handle(self, message: ToSteward) -> None:
        """Of its scheduler."""
        if isinstance(message, Profiled):
            self._profile.answered(message)
            return
        if isinstance(message, AdapterChanged):
            self._adapters.changed(message)
            return
        if not isinstance(message, Advance):
            self._administration.answered(message)
            return
        self._sequences.advanced(message.refs)

    def do_work(self) -> int:
        """Tell each server what a step has brought, in one record."""
        done = 0
        for session in self._sessions.values():
            if session.changed and session.can_be_told:
                done += self._sequences.tell(session)
            if session.can_be_told and (
                session.engine_told is None or self._engine.worker() != session.engine_told.worker
            ):
                self._tell_engine(session)
        return done

    def _look(self) -> None:
        """What nobody says: gauges, what is cached, who is silent, whose time is over."""
        now = time.monotonic()
        self._loop.call_later(LOOK_S, self._look)
        for session in list(self._sessions.values()):
            if session.can_be_told:
                self._tell_engine(session)
                assert session.channel is not None and session.cached is not None
                for record in cached_since(session.cached):
                    session.channel.send(record)
            if session.channel is None and now - session.lost_at > wire.LEASE_S:
                self._context.log.info("a server has not come back: %d sequences end", len(session.sequences))
                self._sequences.drop(session, set(session.sequences))
                self._adapters.drop(session, set(session.adapters))
                del self._sessions[session.server]
        self._adapters.look()
        for channel in list(self._by_channel):
            channel.look()
        self._handshakes.look(now)
        self._turns.turn()

    def _tell_engine(self, session: Session) -> None:
        before, told = session.engine_told, self._engine.record()
        has_died = before is not None and before.worker not in (0, told.worker) and not self._engine.is_parked
        if told != before and session.channel is not None:
            session.engine_told = told
            session.channel.send(msgspec.structs.replace(told, suspects=self._suspects(session) if has_died else []))

    def _suspects(self, session: Session) -> list[int]:
        """Of the workers' death, unless somebody has ended them: those who were part of steps, which the KV map says
        until the next life is met.
        """
        return [] if self._engine.was_ended() else self._sequences.in_steps(session)


def main(context: Context) -> None:
    """Run the steward until it is told to stop."""
    actor = StewardActor(context)
    run_loop(context, actor, actor.open)
