"""The sequences of one engine elsewhere, as the server's request table has them: the link's part of what a scheduler
does with its own (scheduler/lifecycle.py), without planning anything.

The order of stores for tokens that have come is: logprobs, stamps, log, tokens cursor; then the finish word; then the
detokenizer is told; then, in the KV map, that it was told. A link that dies at any of these has a successor that names
the log as it stands, and is sent the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import msgspec
import numpy as np

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import RequestTable, generation_of, slot_of
from actorserve.shm.table.vectors import NUMBER_BYTES, Vectors

from ..protocol.messages import Finish
from ..protocol.request import Generation
from ..protocol.sockets import engine_wire as wire
from ..protocol.wire import ITEM_BYTES, unpack
from ..scheduler.metrics.request_stats import RequestStats
from ..scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL, MARGIN

HOSTINGS_BITS, LIVES = 40, 1 << 20  # of the number of a Begin: which of a life's it is, and which life's


@dataclass(slots=True, eq=False)
class RemoteSequence:
    """One that this engine owns and that has not ended."""

    ref: int
    num_prompt_tokens: int
    max_tokens: int
    num_generated_tokens: int
    deaths: int  # of workers, of which it is suspect
    clear_at: int  # generated tokens with which it is so no more
    is_sent: bool = False
    has_run: bool = False  # there
    pools: bool = False
    adapter: int = 0
    hosting: int = 0  # the number of its last Begin
    is_heeded: bool = False  # the engine does what it asks for, as far as that was looked at (unheeded.py)


class Sequences:
    """`held` by ref, in the order of their coming; `moved`: of whom there is something to say."""

    def __init__(
        self, table: RequestTable, kv: KVMap, stats: RequestStats, logprobs: Logprobs, most: int, life: int = 0
    ) -> None:
        """`most` that an engine takes before others are refused; `life`: which of the link's it is."""
        self._table, self._kv, self.stats, self._area, self._most = table, kv, stats, logprobs, most
        self._stamps = Stamps(table)
        self.held: dict[int, RemoteSequence] = {}
        self.moved: dict[int, None] = {}
        self._ended: list[int] = []
        self._written: dict[int, int] = {}  # generations whose logprobs lie in slots, by slot
        self.drop: Callable[[RemoteSequence], None] = lambda held: None  # it is not wanted there any more
        self.pooled: Vectors | None = None  # of a model that makes such
        self._parts: dict[int, bytearray] = {}  # of those whose numbers come
        self.adapter_of: Callable[[int], int] = lambda ref: 0
        self.knows_adapter: Callable[[int], bool] = lambda adapter: True  # it is loaded
        # never those of the life before: what the steward says of its Begins may come on this one's connection
        self._hostings = count((life % LIVES << HOSTINGS_BITS) + 1)
        self.prompted = self.generated = self.finished = self.rejected = self.sent = 0

    # --- as a scheduler admits and ends --------------------------------------------------------------------------

    def admit(self, ref: int, recovers: bool = False) -> None:
        """Take it up where its log stands. Known and finished ones are left."""
        table = self._table
        prompt = table.prompt_length(ref)
        if ref in self.held or prompt is None:
            return
        if table.finish(ref):
            if recovers and not self._kv.is_announced(ref):
                self._has_ended(ref)
            return
        generated, moves = table.generated(ref), table.moves(ref)
        if table.is_cancelled(ref):
            self._end_with(ref, Finish.ABORT)
        elif table.stop(ref):
            self._end_with(ref, Finish.STOP_STRING)
        elif len(self.held) >= self._most and not (generated or moves[0]):
            self.rejected += 1
            self._end_with(ref, Finish.REJECTED)
        else:
            self._hold(ref, prompt, generated, moves[1], recovers)

    def _hold(self, ref: int, prompt: int, generated: int, deaths: int, recovers: bool) -> None:
        adapter = self.adapter_of(ref)
        if not self.knows_adapter(adapter):
            self._end_with(ref, Finish.ADAPTER)
        else:
            limit = self._table.limit(ref)
            pools = self.pooled is not None
            own = RemoteSequence(
                ref, prompt, limit, generated, deaths, generated + MARGIN, pools=pools, adapter=adapter
            )
            self.held[ref] = own
            if self.stats.admitted(ref, recovers):
                self.prompted += prompt

    def blame(self, refs: list[int]) -> list[int]:
        """A worker died while it computed for these; who is convicted is given up (refs returned). As a scheduler does
        (scheduler/recovery/suspects.py).
        """
        suspects = [held for ref in refs if (held := self.held.get(ref)) is not None]
        for held in suspects:
            held.deaths += 1
            held.clear_at = held.num_generated_tokens + MARGIN
        if len(suspects) == 1 == len(refs) and suspects[0].deaths > DEATHS_BEFORE_TRIAL:
            self.end(suspects[0].ref, Finish.ERROR)
            return refs
        return []

    def refuse(self, ref: int) -> None:
        """Links have died of it."""
        if ref not in self.held and not self._table.finish(ref):
            self._end_with(ref, Finish.ERROR)

    def end(self, ref: int, code: Finish) -> None:
        """From here: cancelled, or a stop string was found."""
        held = self.held.get(ref)
        if held is not None:
            self._finish(held, code)
            self.drop(held)

    def let_go(self, held: RemoteSequence) -> None:
        """It goes on elsewhere."""
        self._forget(held)
        self.drop(held)

    def _finish(self, held: RemoteSequence, code: int) -> None:
        self._end_with(held.ref, code)
        self._forget(held)
        self.finished += 1
        self.stats.ended(held)

    def _forget(self, held: RemoteSequence) -> None:
        del self.held[held.ref]
        self._parts.pop(held.ref, None)
        self.sent -= held.is_sent

    def _end_with(self, ref: int, code: int) -> None:
        self._table.set_finish(ref, code)
        self.stats.ends[code] += 1
        self._has_ended(ref)

    def _has_ended(self, ref: int) -> None:
        self.moved[ref] = None
        self._ended.append(ref)

    def published(self) -> None:
        """What was said of all that have moved is in the lanes."""
        for ref in self._ended:
            self._kv.set_announced(ref)
        self._ended.clear()

    # --- what is there and what comes from there -----------------------------------------------------------------

    def record_of(self, held: RemoteSequence) -> wire.Begin:
        """All that the engine has to know of it. What it has said before counts no more."""
        table, ref, prompt = self._table, held.ref, held.num_prompt_tokens
        end = prompt + held.num_generated_tokens
        tokens = table.token_ids(ref, 0, end).tobytes()
        given = tokens[4 * prompt :]
        prompt_bytes, hashes, rendition = tokens[: 4 * prompt], table.hashes(ref), table.rendition(ref)
        limit, params = held.max_tokens, table.params(ref)
        if table.load(ref):  # of which the parameters do not tell
            generation = msgspec.msgpack.decode(params, type=Generation)
            params = msgspec.msgpack.encode(msgspec.structs.replace(generation, adapter=held.adapter))
        held.hosting = next(self._hostings)
        return wire.Begin(ref, params, prompt_bytes, hashes, limit, rendition, given, held.deaths, held.hosting)

    def mark_sent(self, held: RemoteSequence, is_sent: bool) -> None:
        self.sent += is_sent - held.is_sent
        held.is_sent = is_sent

    def logprobs(self, record: wire.Logprobs) -> None:
        """They come before the tokens that they are of. ValueError or IndexError if they cannot be."""
        if record.count < 1:
            raise ValueError(f"logprobs of {record.count} positions")
        if self._hosted(record) is None:
            return
        slot = slot_of(record.ref)
        if self._written.setdefault(slot, generation_of(record.ref)) != generation_of(record.ref):
            self._area.forget(slot)
            self._written[slot] = generation_of(record.ref)
        self._area.copy_in(slot, record.position, record.count, record.entries)
        if record.listed:
            listed = len(record.listed) // (4 * record.count)
            self._area.copy_listed(slot, record.position, record.count, listed, record.listed)

    def vectors(self, record: wire.Vectors) -> None:
        """What a model has made of a prompt, part by part; it is whole before its end is told. ValueError or IndexError
        if it cannot be.
        """
        if record.ref not in self.held or self.pooled is None:
            return
        if min(record.rows, record.columns) < 1 or record.rows * record.columns > self.pooled.numbers:
            raise ValueError(f"{record.rows} times {record.columns} numbers")
        if not record.start:
            self._parts[record.ref] = bytearray()
        found = self._parts.setdefault(record.ref, bytearray())
        if len(found) != record.start:
            raise ValueError(f"numbers from byte {record.start} on, where there are {len(found)}")
        found += record.data
        if len(found) >= NUMBER_BYTES * record.rows * record.columns:
            self.pooled.write(record.ref, record.rows, record.columns, memoryview(self._parts.pop(record.ref)))

    def progress(self, record: wire.Progress) -> None:
        """Append what is new; what has come before is dropped. ValueError if there is a hole."""
        news = [(held, moved) for moved in record.moved if (held := self._hosted(moved)) is not None]
        if fresh := [held for held, moved in news if moved.tokens]:
            self._stamp(news)
            self.stats.appending(np.array([slot_of(held.ref) for held in fresh]))
        for held, moved in news:
            self._append(held, moved)
            if moved.finish:
                self._end_as_told(held, moved)

    def _hosted(self, said: wire.Moved | wire.Logprobs) -> RemoteSequence | None:
        """Of whom this is said: not of one that has come back since, and goes on behind other tokens."""
        held = self.held.get(said.ref)
        return held if held is not None and held.hosting == said.hosting else None

    def _end_as_told(self, held: RemoteSequence, moved: wire.Moved) -> None:
        """Unless that is the end of a shorter log, with which another engine has gone on meanwhile: then it is told of
        the longer one. ValueError if it is no end.
        """
        if moved.start + len(moved.tokens) // ITEM_BYTES == held.num_generated_tokens:
            self._finish(held, Finish(moved.finish))
        else:
            self.mark_sent(held, False)

    def _append(self, held: RemoteSequence, moved: wire.Moved) -> None:
        before = held.num_generated_tokens - moved.start
        if before < 0:
            raise ValueError(f"tokens from {moved.start} on, where there are {held.num_generated_tokens}")
        tokens = unpack(moved.tokens)[before:].tolist()
        if tokens:
            self._table.append(held.ref, tokens)
            held.num_generated_tokens += len(tokens)
            self.generated += 0 if held.pools else len(tokens)
            if held.deaths and held.num_generated_tokens >= held.clear_at:
                held.deaths = 0
                self._table.clear_deaths(held.ref)
            self.moved[held.ref] = None

    def _stamp(self, news: list[tuple[RemoteSequence, wire.Moved]]) -> None:
        """Of those whose first step has come back there: when that was planned, by how long it had waited."""
        now = time.monotonic_ns()
        for held, moved in news:
            if not held.has_run:
                held.has_run = True
                scheduled = min(now, self._stamps.get(held.ref, Stamp.ADMITTED) + moved.waited_ns)
                if self._stamps.set_first(held.ref, Stamp.SCHEDULED, scheduled):
                    self._table.set_cached(held.ref, moved.cached)
