"""What one server has in hand on this machine, and what it was told of it.

It outlives a connection, for LEASE_S: a link that connects again names what it still wants, and each sequence goes on
behind what the server has of it. Whatever it does not name is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from actorserve.shm.kv_map.reader import CachedBlocks
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import RequestTable, slot_of
from actorserve.shm.table.vectors import Vectors

from ..engines.channel import Channel
from ..protocol.messages import Finish
from ..protocol.request import Generation, Sampling
from ..protocol.sockets.engine_wire import Begin, Cached, Engine, Moved, Progress
from ..protocol.sockets.engine_wire import Logprobs as LogprobRecord
from ..protocol.sockets.engine_wire import Vectors as VectorRecord
from ..protocol.wire import ITEM_BYTES, pack

VECTOR_BYTES = 8 << 20  # in a record
LOGPROBS_AT_ONCE = 2048  # positions in a record
MOST_CACHED = 1 << 14  # blocks in a record


@dataclass(slots=True)
class Hosted:
    """A sequence of another server in a slot of this one's table."""

    ref: int  # the server's
    own: int  # this machine's
    prompt: int  # tokens
    told: int  # generated tokens that the server has
    logprobs: int  # of each token so many likeliest; -1: none
    listed: int  # token ids whose logprobs are told
    prompt_logprobs: int  # -1: none, or the server has them
    began_told: bool = False  # how its prompt fared
    adapter: int = 0  # the server's id of its load
    hosting: int = 0  # the number of its last Begin
    logprobs_end: int = 0  # logprobs of positions before it were sent, if they are wanted
    lists_prompt: bool = False  # those listed are told of the prompt, too


@dataclass
class Session:
    """Of one server."""

    server: str
    engine: int  # its number there
    channel: Channel | None = None  # None: it is gone, since `lost_at`
    lost_at: float = field(default_factory=time.monotonic)
    sequences: dict[int, Hosted] = field(default_factory=dict)  # by the server's refs
    named: set[int] | None = field(default_factory=set)  # since this connection began; None: all were
    changed: dict[int, None] = field(default_factory=dict)
    cached: CachedBlocks | None = None  # as this connection was told
    engine_told: Engine | None = None
    adapters: set[int] = field(default_factory=set)  # that its requests may have, by its ids

    def connect(self, channel: Channel, cached: CachedBlocks) -> None:
        """There is another connection; the one before counts no more."""
        if self.channel is not None:
            self.channel.close("its server has connected anew")
        self.channel, self.cached, self.engine_told, self.named = channel, cached, None, set()

    def disconnect(self) -> None:
        """The server is gone, or its connection."""
        self.channel, self.lost_at = None, time.monotonic()

    @property
    def can_be_told(self) -> bool:
        """Is there somebody who reads?"""
        return self.channel is not None and self.channel.is_trusted and self.channel.is_writable


class Reports:
    """What sequences have become, read off this machine's table."""

    def __init__(self, table: RequestTable, logprobs: Logprobs, vectors: Vectors | None = None) -> None:
        """`vectors`: of a model that pools."""
        self._table, self._area, self._stamps = table, logprobs, Stamps(table)
        self._vectors = vectors
        self._read_params = msgspec.msgpack.Decoder(Generation).decode

    def host(self, begin: Begin, own: int = 0) -> Hosted:
        """A sequence that has come. `own`: where it has a slot already."""
        params: Generation = self._read_params(begin.params)
        sampling: Sampling = params.sampling
        told = len(begin.generated) // 4
        asked = -1 if told else sampling.prompt_logprobs
        prompt = len(begin.prompt) // 4
        listed = len(sampling.logprob_token_ids)
        parts = begin.ref, own, prompt, told, sampling.logprobs, listed, asked, False, params.adapter, begin.hosting
        return Hosted(*parts, lists_prompt=sampling.lists_prompt)

    def continues(self, known: Hosted, begin: Begin) -> bool:
        """Is what the server has of it the beginning of what is here? While the way was cut another engine may have
        gone on with it, and have drawn otherwise.
        """
        there, here = len(begin.generated) // ITEM_BYTES, self._table.generated(known.own)
        if there > here:
            return False
        found: bytes = self._table.token_ids(known.own, known.prompt, known.prompt + there).tobytes()
        return found == begin.generated

    def go_on(self, known: Hosted, begin: Begin) -> None:
        """Its server has so much of it as it says. With no token it may not have heard of the prompt, either: what was
        written to a way that was cut then may have been read or not.
        """
        known.told, known.hosting, known.logprobs_end = len(begin.generated) // ITEM_BYTES, begin.hosting, 0
        if not known.told:
            params: Generation = self._read_params(begin.params)
            known.prompt_logprobs, known.began_told = params.sampling.prompt_logprobs, False

    def tell(self, session: Session, refs: list[int]) -> list[Hosted]:
        """Say what is new of these, and keep as changed what is left; returns those that have ended, which the server
        knows now.
        """
        assert session.channel is not None
        moved, ended = [], []
        for ref in refs:
            hosted = session.sequences.get(ref)
            if hosted is None:
                continue
            finish = self._table.finish(hosted.own)  # before the tokens: they are stored first
            count = self._table.generated(hosted.own)
            if count <= hosted.told and not finish:
                continue
            if not self._tell_logprobs(session.channel, hosted, count):
                session.changed[ref] = None
                continue
            if finish == Finish.STOP and self._vectors is not None:
                self._tell_vectors(session.channel, hosted, self._vectors)
            moved.append(self._moved(hosted, count, finish))
            hosted.told = max(count, hosted.told)
            if finish:
                ended.append(hosted)
        if moved:
            session.channel.send(Progress(moved))
        return ended

    def _moved(self, hosted: Hosted, count: int, finish: int) -> Moved:
        start = hosted.prompt + hosted.told
        tokens = pack(self._table.token_ids(hosted.own, start, max(start, hosted.prompt + count)).tolist())
        if hosted.began_told:
            return Moved(hosted.ref, hosted.told, tokens, finish, hosting=hosted.hosting)
        hosted.began_told = True
        get = self._stamps.get
        admitted, scheduled = get(hosted.own, Stamp.ADMITTED), get(hosted.own, Stamp.SCHEDULED)
        waited = max(0, scheduled - admitted) if admitted and scheduled else 0
        cached = self._table.cached(hosted.own)
        return Moved(hosted.ref, hosted.told, tokens, finish, cached, waited, hosted.hosting)

    def _tell_vectors(self, channel: Channel, hosted: Hosted, vectors: Vectors) -> None:
        """They are there when the finish word is."""
        if (found := vectors.read(hosted.own)) is None:
            return
        rows, columns, data = found
        for start in range(0, len(data), VECTOR_BYTES):
            channel.send(VectorRecord(hosted.ref, rows, columns, start, data[start : start + VECTOR_BYTES]))

    def give_back(self, own: int) -> None:
        """A slot is free: numbers that were made of it take no more memory, told or not."""
        if self._vectors is not None:
            self._vectors.give_back(own)

    def _tell_logprobs(self, channel: Channel, hosted: Hosted, count: int) -> bool:
        """In parts, as long as they are read. Have all been sent?"""
        slot, ref, hosting = slot_of(hosted.own), hosted.ref, hosted.hosting
        if hosted.prompt_logprobs >= 0:
            for start, some in _parts(max(1, hosted.logprobs_end), hosted.prompt):  # the first token follows nothing
                if not channel.is_writable:
                    return False
                entries = self._area.copy_out(slot, start, some, hosted.prompt_logprobs)
                listed = self._area.copy_listed(slot, start, some, hosted.listed) if hosted.lists_prompt else b""
                channel.send(LogprobRecord(ref, start, some, entries, listed, hosting))
                hosted.logprobs_end = start + some
            hosted.prompt_logprobs = -1
        first = hosted.told if hosted.logprobs >= 0 else count
        for start, some in _parts(max(hosted.prompt + first, hosted.logprobs_end), hosted.prompt + count):
            if not channel.is_writable:
                return False
            entries = self._area.copy_out(slot, start, some, hosted.logprobs)
            listed = self._area.copy_listed(slot, start, some, hosted.listed) if hosted.listed else b""
            channel.send(LogprobRecord(ref, start, some, entries, listed, hosting))
            hosted.logprobs_end = start + some
        return True


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the positions that go into each record."""
    for at in range(start, end, LOGPROBS_AT_ONCE):
        yield at, min(LOGPROBS_AT_ONCE, end - at)


def cached_since(reader: CachedBlocks) -> list[Cached]:
    """What is cached now, and was not when it was asked for the last time; and the other way round."""
    changed, records = reader.changed(), []
    for start in range(0, len(changed), MOST_CACHED):
        seen = [(block, reader.look(block)) for block in changed[start : start + MOST_CACHED]]
        new = [(block, found[1]) for block, found in seen if found is not None]
        gone = [block for block, found in seen if found is None]
        keys = b"".join(key for _, key in new)
        records.append(Cached(reader.blocks, pack(gone), pack([block for block, _ in new]), keys))
    return records
