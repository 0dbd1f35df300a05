"""Sequences of servers elsewhere in this machine's request table: what a frontend and a renderer do with slots, for all
sessions together.

A slot is free once its end is known to the server, or nobody wants to know it and the scheduler has said it: as a slot
of a frontend is with its last Delta. actor.py argues what becomes of each death.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of

from ..protocol.messages import Admit, Cancel, Finish
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.adapters import AdapterRead
from ..protocol.wire import ITEM_BYTES
from ..runtime.process import Context
from .adapters import StewardAdapters
from .session import Hosted, Reports, Session


class HostedSequences:
    """All of one machine's. Whose they are stands in the steward's memory alone."""

    def __init__(self, context: Context, adapters: StewardAdapters) -> None:
        self._context, self._table, self._adapters = context, context.table, adapters
        self._scheduler = context.system.schedulers[0]
        logprobs = Logprobs(context.files["logprobs"], *context.system.files.logprobs)
        self._reports = Reports(context.table, logprobs, context.vectors())
        self._owners: dict[int, tuple[Session, Hosted]] = {}  # by this machine's refs
        self._ending: set[int] = set()  # of which nobody wants to know: their slots are free once they have ended
        self._free = self._take_over()

    @property
    def num_free(self) -> int:
        """How many more there can be."""
        return len(self._free)

    def _take_over(self) -> list[int]:
        """End what a predecessor has begun; the slots that are free."""
        table, found = self._table, set[int]()
        for ref in table.current_refs(0, table.slots):
            if table.prompt_length(ref) is not None and not table.finish(ref):
                found.add(slot_of(ref))
                self._cancel(ref)
                self._context.post(self._scheduler, Admit([ref]))  # perhaps it was not
        if found:
            self._context.log.info("%d sequences of servers elsewhere are ended, until they are told anew", len(found))
        return [slot for slot in reversed(range(table.slots)) if slot not in found]

    # --- what servers want ---------------------------------------------------------------------------------------

    def begin(self, session: Session, begin: wire.Begin) -> None:
        """A server wants it, or wants it still."""
        assert session.channel is not None
        if session.named is not None:
            session.named.add(begin.ref)
        known = session.sequences.get(begin.ref)
        if known is not None and self._reports.continues(known, begin):
            self._reports.go_on(known, begin)
            session.changed[begin.ref] = None
            return
        self.drop(session, [begin.ref])
        try:  # what cannot be read opens no slot: a successor would take it for a sequence
            hosted, params = self._reports.host(begin), self._adapters.params(begin.params)
            if not self._free or params is None:
                session.channel.send(wire.Turned([begin.ref]))
                return
            hosted.own = own = self._write(self._free[-1], msgspec.structs.replace(begin, params=params))
        except (ValueError, msgspec.DecodeError) as error:
            self._context.log.error("a sequence of the server at %s cannot be: %s", session.channel.peer, error)
            told = len(begin.generated) // ITEM_BYTES
            said = wire.Moved(begin.ref, told, b"", Finish.ERROR, hosting=begin.hosting)
            session.channel.send(wire.Progress([said]))
            return
        self._free.pop()
        session.sequences[begin.ref] = hosted
        self._owners[own] = session, hosted
        self._context.post(self._scheduler, Admit([own]))

    def _write(self, slot: int, begin: wire.Begin) -> int:
        """As frontend and renderer do. It counts as moved here, so that it is not refused for want of room."""
        if len(begin.prompt) % ITEM_BYTES or len(begin.generated) % ITEM_BYTES:
            raise ValueError(f"{len(begin.prompt)} and {len(begin.generated)} bytes of tokens")
        table, given = self._table, memoryview(begin.generated).cast("i").tolist()
        own = table.open_slot(slot, begin.params, time.monotonic_ns())
        table.write_prompt(own, begin.prompt, begin.hashes, begin.limit, begin.rendition, given=given)
        table.move(own, 0, begin.deaths)
        return own

    def all_begun(self, session: Session) -> None:
        """Its server has named all that it wants since it is connected."""
        self.drop(session, set(session.sequences) - (session.named or set()))
        session.named = None

    def drop(self, session: Session, refs: Iterable[int]) -> None:
        """Nobody there wants these any more."""
        for ref in refs:
            hosted = session.sequences.pop(ref, None)
            session.changed.pop(ref, None)
            if hosted is not None:
                del self._owners[hosted.own]
                self._end(hosted.own)

    def _end(self, own: int) -> None:
        if self._table.finish(own):
            self._free_slot(own)  # whose end was heard, and not told
        else:
            self._cancel(own)

    def _cancel(self, own: int) -> None:
        """Its slot is free once its end is heard."""
        self._ending.add(own)
        self._table.cancel(own)
        self._context.post(self._scheduler, Cancel([own]))

    # --- what becomes of them ------------------------------------------------------------------------------------

    def advanced(self, refs: Iterable[int]) -> None:
        """The scheduler has something to say of these, by this machine's refs."""
        for own in refs:
            if own in self._owners:
                session, hosted = self._owners[own]
                session.changed[hosted.ref] = None
            elif own in self._ending and self._table.finish(own):
                self._ending.remove(own)
                self._free_slot(own)

    def tell(self, session: Session) -> int:
        """Tell a server, who reads, what is new, in one record; of how many sequences."""
        refs = list(session.changed)
        session.changed.clear()
        for hosted in self._reports.tell(session, self._without_turned(session, refs)):
            self._has_ended(session, hosted)
        return len(refs)

    def _without_turned(self, session: Session, refs: list[int]) -> list[int]:
        """Those that have ended since their adapter's files have changed here go on where that is still in memory."""
        assert session.channel is not None
        turned = [
            hosted
            for ref in refs
            if (hosted := session.sequences.get(ref)) is not None and self._table.finish(hosted.own) == Finish.ADAPTER
        ]
        for hosted in turned:
            session.channel.send(AdapterRead(0, 0, hosted.adapter, "its files there have changed since it was loaded"))
            session.channel.send(wire.Turned([hosted.ref]))
            self._has_ended(session, hosted)
        gone = {hosted.ref for hosted in turned}
        return [ref for ref in refs if ref not in gone]

    def _has_ended(self, session: Session, hosted: Hosted) -> None:
        del session.sequences[hosted.ref], self._owners[hosted.own]
        self._free_slot(hosted.own)

    def _free_slot(self, own: int) -> None:
        """Nobody wants to know any more what is in it."""
        self._reports.give_back(own)
        self._free.append(slot_of(own))

    def in_steps(self, session: Session) -> list[int]:
        """By the server's refs, those of a session that the KV map says were part of steps."""
        if session.cached is None:
            return []
        owners = (self._owners.get(own) for own in session.cached.holders())
        return [owner[1].ref for owner in owners if owner is not None and owner[0] is session]
