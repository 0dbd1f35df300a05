"""Requests of a running server, as its shared memory has them: found by what their clients call them.

A request is one slot of the table for each of its choices. It is there until the slot is used again, so also a while
after its end. Nothing is written, and nobody is asked.
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass, field, replace

import msgspec

from actorserve.shm.adapters.registry import AdapterRegistry
from actorserve.shm.journals.response_journal import ResponseJournal
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.table.stamps import Life, Stamps
from actorserve.shm.table.table import RequestTable, slot_of

from ..protocol.messages import Finish
from ..protocol.request import Generation, Sampling
from .attach import Attached

ANSWER_ID = re.compile(  # of a Realtime session's answer no frontend is named
    r"(?:chatcmpl-|cmpl-|msg_|resp_(?:[0-9a-f]{2})?)(?P<seed>[0-9a-f]{16})[0-9a-f]{8}"
)
NAMED_ANSWER = re.compile(r"(?:chatcmpl|cmpl)-(?P<name>.+)")  # of a request to which its client has given a name
NUMBER = re.compile(r"(?:slot )?(?P<number>\d{1,10}|0x[0-9a-f]{1,16})")


@dataclass(frozen=True)
class Facts:
    """One choice of a request at one moment: what the words of its slot say."""

    ref: int
    seed: int  # what the answer's id is made of; 0: it has none
    params: Generation
    life: Life
    cancelled: bool
    prompt: int | None  # tokens; None: it is not rendered yet
    limit: int
    cached: int
    generated: int
    text: int  # tokens that were turned to text and sent
    finish: Finish
    held: int  # KV blocks; of an engine elsewhere that is not known here
    computed: int  # tokens whose KV is in them; likewise
    full_since: int  # CLOCK_MONOTONIC ns since which its client is too slow for what is written to it; 0: it is not

    engine: int = 0  # that it belongs to, once there is a prompt
    model: int = 0  # which of the server's is asked
    moves: int = 0  # how often it has changed its engine
    adapter: str = ""  # the name of its adapter; of one that is there no more what its load was

    @property
    def slot(self) -> int:
        return slot_of(self.ref)

    @property
    def known(self) -> int:
        """Tokens in the log."""
        return (self.prompt or 0) + self.generated


@dataclass
class Requests:
    """All requests of one server."""

    server: Attached
    table: RequestTable = field(init=False)

    def __post_init__(self) -> None:
        segment, system = self.server.segment, self.server.system
        self.table = RequestTable.attach(segment, system.table_offset)
        self._stamps = Stamps(self.table)
        self.maps = [KVMap(segment.map, offset, *system.kv_map_sizes) for offset in system.kv_map_offsets]
        offset = system.adapters_offset
        self._adapters = None if offset is None else AdapterRegistry(segment, offset, len(system.engines))
        self._decode = msgspec.msgpack.Decoder(Generation).decode
        self._answers = self._open_answers()

    def _open_answers(self) -> ResponseJournal | None:
        """What was written to connections; None where it cannot be had, since the supervisor has just ended."""
        description = self.server.description
        try:
            fd = os.open(f"/proc/{description.pid}/fd/{description.files['answers']}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return ResponseJournal(fd, self.server.system.files.answers, mmap.ACCESS_READ)
        finally:
            os.close(fd)

    def all(self) -> list[Facts]:
        """Every slot that was ever used, in the order of arrival."""
        refs = self.table.current_refs(0, self.table.slots)
        held, full = self._held(), self._full()
        found = [facts for ref in refs if (facts := self._facts(ref, held, full)) is not None]
        return sorted(found, key=lambda facts: (facts.life.arrival, facts.ref))

    def _held(self) -> dict[int, int]:
        """Blocks by the refs that hold them, each in the engine that it belongs to."""
        of = self.table.engine
        return {ref: len(kv.held(ref)) for at, kv in enumerate(self.maps) for ref in kv.holders() if of(ref) == at}

    def _full(self) -> dict[int, int]:
        """Since when, by the refs whose clients are too slow."""
        found: dict[int, int] = {}
        for number in range(self._answers.count if self._answers else 0):
            assert self._answers is not None
            since = self._answers.full_since(number)
            streamed = self._answers.streamed(number) if since else None
            if streamed is not None:
                found.update(dict.fromkeys(streamed[0], since))
        return found

    def _facts(self, ref: int, held: dict[int, int], full: dict[int, int]) -> Facts | None:
        """None if the slot was opened anew meanwhile."""
        table, packed = self.table, self.table.params(ref)
        model, engine = table.model(ref), table.engine(ref)
        if engine is None:
            engine = self.server.system.models[model].engines[0]
        finish = Finish(table.finish(ref))
        facts = Facts(
            ref=ref,
            seed=table.seed(ref),
            params=self._decode(packed) if packed else Generation(Sampling(0)),
            life=Life(0, {}, 0, 0),
            cancelled=table.is_cancelled(ref),
            prompt=table.prompt_length(ref),
            limit=table.limit(ref),
            cached=table.cached(ref),
            text=table.text(ref),
            generated=table.generated(ref),
            finish=finish,
            held=held.get(ref, 0),
            computed=(self.maps[engine].computed(ref) or 0) if ref in held else 0,
            full_since=full.get(ref, 0),
            engine=engine,
            model=model,
            moves=table.moves(ref)[0],
        )
        facts = replace(facts, adapter=self._adapter(table.load(ref) or facts.params.adapter))
        life = self._stamps.life(ref)  # last: it says whether all the rest is of one use
        return None if life is None else replace(facts, life=life)

    def _adapter(self, load: int) -> str:
        if not load or self._adapters is None:
            return ""
        found = self._adapters.by_id(load)
        return f"unloaded meanwhile ({load})" if found is None else found.name

    @staticmethod
    def find(name: str, everything: list[Facts]) -> list[Facts]:
        """All choices of the request that a client, a log or --list calls so, in their order; none if there is none."""
        by_answer, named = ANSWER_ID.fullmatch(name), NAMED_ANSWER.fullmatch(name)
        found = [
            facts
            for facts in everything
            if facts.params.request_id == name or (by_answer and facts.seed == int(by_answer["seed"], 16))
        ]
        if not found and named:
            found = [facts for facts in everything if facts.params.request_id == named["name"]]
        if not found and (number := NUMBER.fullmatch(name)):
            wanted = int(number["number"], 0 if number["number"].startswith("0x") else 10)
            found = [facts for facts in everything if wanted in (facts.ref, facts.slot)]
        return found
