"""A worker that computes nothing and checks everything: KV memory holds, for each slot, which prefix it stands for.

Every token that a plan computes is checked to find its whole prefix in the sequence's blocks. The next token is a
function of the prefix, so that an undisturbed run is known beforehand, whatever happens on the way.
Where a row has room for drafts, it has some, of which the first few are right and the others leave KV of another text.
With a layout (KVLayout) it has what such a model has: states that must stand where a row goes on, snapshots of them,
and tables of windows in which all that a token sees must be found.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice

import msgspec
import numpy as np

from actorserve.actors.protocol.block_hash import extend_hashes
from actorserve.actors.protocol.media import MediaItem
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import KVLayout, Step, StepDone
from actorserve.actors.scheduler.limits import Limits
from actorserve.actors.scheduler.recovery.takeover import Takeover
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, slot_of, table_bytes

BLOCK = 8
VOCAB = 50
END = 7
MAX_TOKENS = 256
WIDTH = MAX_TOKENS // BLOCK  # of a block table
PLAIN = KVLayout()
Items = Many[MediaItem]


def next_token(prefix: bytes) -> int:
    """The scripted model: any token, END among them."""
    return zlib.crc32(prefix) % VOCAB


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [_prompt_token(seed, i) for i in range(length)]


@cache  # hundreds of scenes are made of the same prompts
def _prompt_token(seed: int, position: int) -> int:
    return random.Random(f"{seed}/{position}").randrange(VOCAB)


def expected_answer(
    prompt: list[int], limit: int, stop_ids: tuple[int, ...] = (), ignore_eos: bool = False
) -> list[int]:
    """What the scripted model generates for this prompt."""
    log = list(prompt)
    while len(log) < len(prompt) + limit:
        log.append(next_token(np.array(log, np.int32).tobytes()))
        if log[-1] in stop_ids or (log[-1] == END and not ignore_eos):
            break
    return log[len(prompt) :]


@dataclass
class Row:
    slot: int
    computed: int
    known: int
    blocks: list[int]
    log: list[int]
    state: bytes  # of which tokens; what lies at a row is its last tenant's until it is told otherwise
    windows: dict[int, int]  # blocks by index in the tables behind the first
    prefixes: list[bytes] = field(default_factory=list)  # of the log, up to each of its positions


class ScriptedWorker:
    """Runs plans against KV memory that knows the prefix of each of its tokens."""

    def __init__(self, table: RequestTable, num_blocks: int, layout: KVLayout = PLAIN) -> None:
        self.layout = layout
        self.snapshots = [b"of nobody"] * layout.snapshots
        self.saved = self.restored = 0
        self.tokens = table.as_numpy().tokens
        self.kv: list[bytes | None] = [None] * (num_blocks * BLOCK)
        self.rows: dict[int, Row] = {}
        self.epoch = 0
        self.largest_step = 0
        self.computed_tokens = 0
        self.accepted = self.rejected = 0
        self.random = random.Random(num_blocks)

    def run(self, step: Step, alive: set[int]) -> StepDone:
        """Run a plan. Rows not `alive` belong to sequences that have ended: their slots may hold other prompts."""
        if step.epoch != self.epoch:
            self.epoch = step.epoch
            self.rows.clear()
        for new in step.new_rows:
            blocks = new.blocks.tolist()
            log = self.tokens[slot_of(new.ref), : new.num_known_tokens].tolist()
            state = self.snapshots[new.snapshot] if new.snapshot >= 0 else b""
            self.restored += new.snapshot >= 0
            place = slot_of(new.ref), new.num_computed_tokens, new.num_known_tokens
            self.rows[new.row] = Row(*place, blocks, log, state, {})
        for number, index, block in step.new_blocks.tolist():
            if index >= WIDTH:
                self.rows[number].windows[index] = block
                continue
            assert len(self.rows[number].blocks) == index
            self.rows[number].blocks.append(block)
        sampled: list[int] = []
        drawn: list[int] = []
        drafted: list[int] = []
        rows, counts = step.rows.tolist(), step.counts.tolist()
        assert len(set(rows)) == len(rows) and all(counts)
        self.largest_step = max(self.largest_step, sum(counts))
        for number, count in zip(rows, counts, strict=True):
            row = self.rows[number]
            room = max(0, count - (row.known - row.computed))
            for _ in range(count - room):
                self._compute(row, number in alive)
            assert row.computed <= row.known
            if row.computed == row.known:
                drafts = self.random.randint(0, room)
                tokens = self._draw(row, drafts, number in alive)
                sampled += tokens
                drawn.append(len(tokens))
                drafted.append(drafts)
            else:
                assert not room, "a row that does not sample has room for drafts"
        for number, snapshot in step.saves.tolist():
            self.snapshots[snapshot] = self.rows[number].state
            self.saved += 1
        told: dict[str, list[int]] = {"num_drawn": drawn, "num_drafted": drafted} if any(drafted) else {}
        return StepDone.make(step, sampled, 0.001 * sum(counts), **told)

    def _draw(self, row: Row, drafts: int, check: bool) -> list[int]:
        """The row's next token, and more of them for those of its drafts that are right."""
        right = self.random.randint(0, drafts)
        self.accepted += right
        self.rejected += drafts - right
        first = row.known
        for _ in range(right + 1):
            row.log.append(next_token(np.array(row.log, np.int32).tobytes()))
            row.known += 1
            if row.computed < row.known - 1:
                self._compute(row, check)
        for position in range(row.computed, row.computed + drafts - right):
            self.kv[row.blocks[position // BLOCK] * BLOCK + position % BLOCK] = b"of a rejected draft"
        return row.log[first:]

    def _compute(self, row: Row, check: bool) -> None:
        position = row.computed
        for end in range(len(row.prefixes), position + 1):
            row.prefixes.append(array("i", row.log[: end + 1]).tobytes())
        prefix = row.prefixes[position]
        if check:
            there = chain.from_iterable(self.kv[block * BLOCK : (block + 1) * BLOCK] for block in row.blocks)
            assert list(islice(there, position)) == row.prefixes[:position], "a position before is not there"
        self.kv[row.blocks[position // BLOCK] * BLOCK + position % BLOCK] = prefix
        for table in range(self.layout.window_tables):
            self._compute_window(row, table, position, prefix, check)
        if self.layout.states:
            assert row.state == prefix[: 4 * position] or not check, f"states do not stand at {position}"
            row.state = prefix
        row.computed += 1
        self.computed_tokens += 1

    def _compute_window(self, row: Row, table: int, position: int, prefix: bytes, check: bool) -> None:
        def place(at: int) -> int:
            return row.windows[(table + 1) * WIDTH + at // BLOCK] * BLOCK + at % BLOCK

        for before in range(max(0, position - self.layout.window + 1), position if check else 0):
            expected = b"%d/" % table + prefix[: 4 * (before + 1)]
            assert self.kv[place(before)] == expected, f"position {before} is not in table {table} for {position}"
        self.kv[place(position)] = b"%d/" % table + prefix


class Bench:
    """A table, a scheduler and a scripted worker, driven step by step."""

    def __init__(
        self,
        *,
        slots: int = 64,
        num_blocks: int = 64,
        spare_blocks: int = 0,
        layout: KVLayout = PLAIN,
        **limits: object,
    ) -> None:
        """The map has room for `spare_blocks` more than there are."""
        self.layout = layout
        self.sampling = Sampling(seed=1)
        self.media: dict[int, list[MediaItem]] = {}  # by slots
        size = table_bytes(slots, MAX_TOKENS, BLOCK, 4096)
        shape = (slots, MAX_TOKENS // BLOCK, num_blocks + spare_blocks, layout.snapshots)
        self.segment = Segment.create(size + kv_map_bytes(*shape), "test")
        self.table = RequestTable.create(self.segment, 0, slots, MAX_TOKENS, BLOCK, 4096)
        self.kv = KVMap(self.segment.map, size, *shape)
        defaults: dict[str, object] = {
            "max_num_seqs": 8, "max_queued": 64, "max_num_batched_tokens": 32, "block_size": BLOCK,
            "prefix_caching": True, "by_priority": False,
        }  # fmt: skip
        self.limits = Limits(**(defaults | limits))  # type: ignore[arg-type]
        self.num_blocks = num_blocks
        self.epochs = self.workers = self.opened = 0
        self.free_slots = list(range(slots))
        self.planned: list[Step] = []  # what is in the worker's lane
        self.birth()
        self.new_worker()

    def new_scheduler(self) -> Takeover | None:
        """The scheduler dies; its successor reads the table and takes over what the worker has, or nothing (None)."""
        self.birth()
        return self.meet_worker()

    def birth(self) -> None:
        """A scheduler starts; steps of the one before stay in the worker's lane."""
        self.scheduler = Scheduler(self.table, self.limits, [END], self.kv, items=self.items)
        self.scheduler.recover()

    def meet_worker(self) -> Takeover | None:
        """A new scheduler hears of the worker. Steps of its predecessor run all the same."""
        self.epochs += 1
        found = self.scheduler.take_over(self.epochs, self.num_blocks, self.workers, self.layout)
        if found is None:
            self.new_epoch()
        return found

    def new_worker(self) -> None:
        """The worker dies with all KV contents and all steps in flight."""
        self.lose_worker()
        self.new_epoch()

    def lose_worker(self) -> None:
        """Another worker starts, of which the scheduler has not heard."""
        self.planned.clear()
        self.worker = ScriptedWorker(self.table, self.num_blocks, self.layout)
        self.workers += 1

    def new_epoch(self) -> None:
        """Nothing is to be found in the worker's memory."""
        self.epochs += 1
        self.scheduler.begin_epoch(self.epochs, self.num_blocks, self.workers, self.layout)

    def submit(self, prompt: list[int], limit: int, media: Items = (), **params: object) -> int:
        ref = self.open(prompt, limit, media, **params)
        self.scheduler.admit(ref)
        return ref

    def items(self, slot: int, generation: int) -> list[MediaItem]:
        """Pictures of a slot's prompt."""
        return self.media.get(slot, [])

    def open(self, prompt: list[int], limit: int, media: Items = (), **params: object) -> int:
        """A slot as frontend and renderer leave it, with pictures in its prompt."""
        self.opened += 1
        generation = Generation(self.sampling, **params)  # type: ignore[arg-type]
        ref = self.table.open_slot(self.free_slots.pop(), msgspec.msgpack.encode(generation), self.opened)
        tokens = np.array(prompt, np.int32).tobytes()
        spans = [(item.start, item.start + item.length, item.digest) for item in media]
        self.media[slot_of(ref)] = list(media)
        self.table.write_prompt(ref, tokens, extend_hashes(b"", tokens, BLOCK, 0, spans), limit)
        return ref

    def check_end(self, ref: int, answer: list[int]) -> None:
        """The sequence has ended with `answer`, or with a part of it if it was aborted. Its slot may be used again."""
        finish = self.table.finish(ref)
        assert finish
        assert self.answer(ref) == (answer[: self.table.generated(ref)] if finish == Finish.ABORT else answer)
        self.free_slots.append(slot_of(ref))

    def plan(self) -> bool:
        step = self.scheduler.plan()
        if step is None:
            return False
        self.planned.append(step)
        return True

    def work(self) -> bool:
        """The worker runs the oldest step that it has, and the scheduler hears of it."""
        if not self.planned:
            return False
        self.scheduler.apply(self.compute())
        self.scheduler.check_integrity()
        return True

    def compute(self) -> StepDone:
        """The worker runs the oldest step that it has; one of a dead scheduler is run as well."""
        step = self.planned.pop(0)
        return self.worker.run(step, self._alive_rows() if step.epoch == self.scheduler.epoch else set())

    def _alive_rows(self) -> set[int]:
        """Rows of the oldest step whose results count: they run still, or were preempted and keep the token."""
        planned = self.scheduler.in_flight[0]
        running = self.scheduler.batch.ticket[planned.rows] == planned.tickets
        sampling = zip(planned.rows[planned.samples].tolist(), planned.refs, strict=True)
        return {*planned.rows[running].tolist(), *(row for row, ref in sampling if ref in self.scheduler.sequences)}

    def run(self, turns: int = 100_000) -> None:
        """Until nothing is left to do."""
        for _ in range(turns):
            while self.plan():
                pass
            if not self.work():
                assert not self.scheduler.sequences, "the scheduler has sequences and plans nothing"
                return
        raise AssertionError("it does not come to an end")

    def answer(self, ref: int) -> list[int]:
        start = self.table.prompt_length(ref)
        assert start is not None
        return list(self.table.token_ids(ref, start, start + self.table.generated(ref)))


def running_bench(count: int = 4, turns: int = 12, **options: object) -> tuple[Bench, dict[int, list[int]]]:
    """A bench in the middle of some requests, with two steps in flight; (it, prompts by ref)."""
    bench = Bench(**options)  # type: ignore[arg-type]
    prompts = {bench.submit(p := prompt_of(20 + 7 * n, n), 30, ignore_eos=True): p for n in range(count)}
    for _ in range(turns):
        while bench.plan():
            pass
        bench.work()
    while bench.plan():
        pass
    return bench, prompts


def finish_all(bench: Bench, prompts: dict[int, list[int]]) -> None:
    bench.run()
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 30, ignore_eos=True)
    assert bench.scheduler.pool.free == bench.num_blocks and bench.kv.holders() == []
