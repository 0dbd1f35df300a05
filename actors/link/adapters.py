"""The adapters of an engine elsewhere, as its link has them: the engine is for them what a worker's group is for a
scheduler (scheduler/lora/adapters.py). It is told of each that requests may name, with a digest of its files; a
sequence goes there when the engine has its adapter.

The link of the first engine writes the registry, as that engine's scheduler would, so that a load is tried there; every
other link reads it. One that an engine cannot have (its files are not there, or are others, on either machine) is no
failure of requests: they go on in engines that have it, and end where there is none.

What an engine has refused stands in the registry for as long as its connection, and until there is another: so nobody
gives a sequence to where it would come back from (engines/refusals.py).

Ids are those of the server; the engine has its own, which its steward knows (steward/adapters.py). A connection is a
life: what the engine has in memory is asked for anew, and is no work where it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from actorserve.shm.adapters.registry import ENTRIES, AdapterState
from actorserve.shm.table.table import RequestTable

from ..engines.channel import Channel
from ..model.lora.adapter import stamp_of
from ..protocol.request import Generation
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.adapters import AdapterChanged, AdapterRead, LoadAdapter, ReadAdapter, UnloadAdapter
from ..protocol.topics.calls import frontend_of_call
from ..runtime.process import Context
from ..scheduler.lora.lanes import make_adapters
from ..scheduler.lora.worker_memory import AdapterLimits
from .sequences import RemoteSequence


class LinkAdapters:
    """Of one life of a link. `missing`: what the engine cannot have, and why, while this connection lasts."""

    def __init__(self, context: Context, name: str) -> None:
        self._context, self._name = context, name
        self._own = make_adapters(context, AdapterLimits(ENTRIES, ENTRIES, 1))
        self._connections = 0
        self._decode = msgspec.msgpack.Decoder(Generation).decode
        self.missing: dict[int, str] = {}

    @property
    def enabled(self) -> bool:
        """Are there any?"""
        return self._own is not None

    def adapter_of(self, table: RequestTable, ref: int) -> int:
        """What a sequence asks for; 0: none."""
        return 0 if self._own is None else table.load(ref) or self._decode(table.params(ref)).adapter

    def knows(self, adapter: int) -> bool:
        """May a sequence be admitted that has this one?"""
        return self._own is None or self._own.knows(adapter)

    def is_there(self, adapter: int) -> bool:
        """Has the engine it? If not it is asked to."""
        return not adapter or self._own is None or (adapter not in self.missing and self._own.is_there(adapter))

    # --- messages ------------------------------------------------------------------------------------------------

    def handle(self, message: LoadAdapter | UnloadAdapter) -> None:
        """Of the first engine's."""
        if self._own is None:
            return
        if isinstance(message, LoadAdapter):
            self._own.load(message)
        else:
            self._own.unload(message)

    def met(self) -> None:
        """Another connection: what is there is not known."""
        self._connections += 1
        self.missing.clear()
        if self._own is not None:
            self._own.registry.forget_refusals()
            self._own.meet_worker(self._connections, ())

    def has_read(self, answer: AdapterRead) -> None:
        """The engine has one, or cannot have it."""
        if self._own is None:
            return
        problem = f"engine {self._context.spec.engine} at {self._name}: {answer.problem}" if answer.problem else ""
        if problem and (one := self._own.registry.by_id(answer.adapter)) is not None:
            self.missing[answer.adapter] = problem
            self._own.registry.refuse(answer.adapter)
            self._context.log.error("the adapter %s cannot be used: %s", one.name, problem)
        self._own.has_read(AdapterRead(self._connections, 0, answer.adapter, problem))
        self._own.lost.clear()

    # --- turns ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Those that requests may name are wanted there before the first of them comes."""
        for one in () if self._own is None or not self._connections else self._own.registry.all():
            if one.state is AdapterState.READY:
                self.is_there(one.id)

    def turn(self, held: Mapping[int, RemoteSequence], channel: Channel | None) -> int:
        """What is to be said of adapters: to the engine, to one frontend, or to all."""
        if self._own is None:
            return 0
        self._own.turn(held)
        done = len(self._own.outbox)
        for message in self._own.outbox:
            if isinstance(message, AdapterChanged):
                self._tell(message)
            elif channel is None:
                continue  # the next connection is asked anew
            elif isinstance(message, ReadAdapter):
                channel.send(wire.Adapter(message.adapter, message.path, _digest(message.path, message.stamp)))
            else:
                channel.send(message)
        self._own.outbox.clear()
        return done

    def _tell(self, message: AdapterChanged) -> None:
        if message.call:
            self._context.post(f"frontend-{frontend_of_call(message.call)}", message)
            return
        for actor in self._context.system.of_kind("frontend"):
            self._context.post(actor.name, message)

    def published(self) -> None:
        """All that was told is in the lanes."""
        if self._own is not None:
            self._own.published()


def _digest(path: str, stamp: int) -> str:
    """Of an adapter's files here; empty if there are none, or others than those of the load, by their stamp: who has
    that in memory has it, and who has not would go on with its texts, and from its blocks, as another adapter.
    """
    try:
        digest = wire.adapter_digest(Path(path).expanduser())
    except OSError:
        return ""
    return digest if stamp in (0, stamp_of(path)) else ""
