"""Adapters of servers elsewhere on this machine: each is loaded by the scheduler under its id there as its name, which
is no other server's (they begin at random numbers), and has an id of its own here.

A steward that dies has said nothing: servers connect anew, and ask again for what they want. What its successor finds
loaded, and nobody has asked for until a server's lease would be over, is unloaded.
"""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import msgspec

from actorserve.shm.adapters.registry import AdapterRegistry, AdapterState

from ..engines.channel import Channel
from ..protocol.request import Generation
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.adapters import AdapterChanged, AdapterRead, LoadAdapter, UnloadAdapter
from ..runtime.process import Context
from .session import Session


class StewardAdapters:
    """All of one machine's."""

    def __init__(self, context: Context) -> None:
        self._context, self._scheduler = context, context.system.schedulers[0]
        offset = context.system.adapters_offset
        self._registry = None if offset is None else AdapterRegistry(context.segment, offset)
        self._numbers = count(1)
        self._asked: dict[str, list[Channel]] = {}  # for whom one is read, by name
        self._began = time.monotonic()
        self._unclaimed = {one.name for one in self._registry.all()} if self._registry is not None else set[str]()
        self._decode, self._encode = msgspec.msgpack.Decoder(Generation).decode, msgspec.msgpack.Encoder().encode

    def read(self, session: Session, channel: Channel, asked: wire.Adapter) -> None:
        """A server's requests are to have this one."""
        name = str(asked.adapter)
        self._unclaimed.discard(name)
        session.adapters.add(asked.adapter)
        problem = "" if self._own(asked.adapter) else self._problem(asked)
        if problem or self._own(asked.adapter):  # what is loaded is what was asked for, whatever lies there by now
            channel.send(AdapterRead(0, 0, asked.adapter, problem))
            return
        self._asked.setdefault(name, []).append(channel)
        self._context.post(self._scheduler, LoadAdapter(next(self._numbers), name, asked.path))

    def _problem(self, asked: wire.Adapter) -> str:
        if self._registry is None:
            return "it was started without --enable-lora"
        try:
            digest = wire.adapter_digest(Path(asked.path).expanduser())
        except OSError as error:
            return f"{asked.path} cannot be read there: {error.strerror}"
        return "" if digest == asked.digest else f"there are other files in {asked.path} there"

    def changed(self, message: AdapterChanged) -> None:
        """The scheduler has read one, or cannot; or has let go of one, which nobody waits for."""
        if not message.name.isdecimal():
            return
        for channel in self._asked.pop(message.name, []):
            channel.send(AdapterRead(0, 0, int(message.name), message.problem))

    def params(self, params: bytes) -> bytes | None:
        """Those of a sequence, with this machine's id of its adapter; None if it is not here."""
        if self._registry is None:
            return params
        generation = self._decode(params)
        if not generation.adapter:
            return params
        own = self._own(generation.adapter)
        return self._encode(msgspec.structs.replace(generation, adapter=own)) if own else None

    def _own(self, adapter: int) -> int:
        found = None if self._registry is None else self._registry.find(str(adapter))
        return 0 if found is None else found.id

    def drop(self, session: Session, adapters: set[int]) -> None:
        """No request of this server has these any more."""
        for adapter in adapters & session.adapters:
            session.adapters.discard(adapter)
            self._unload(str(adapter))

    def look(self) -> None:
        """Now and then: what a predecessor has left, and nobody wants."""
        if self._unclaimed and time.monotonic() - self._began > wire.LEASE_S:
            for name in self._unclaimed:
                self._unload(name)
            self._unclaimed.clear()

    def _unload(self, name: str) -> None:
        loaded = () if self._registry is None else self._registry.all()
        if any(one.name == name and one.state is not AdapterState.UNLOADING for one in loaded):
            self._context.post(self._scheduler, UnloadAdapter(next(self._numbers), name))
