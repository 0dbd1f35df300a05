"""Fetches from the tiers: what is copied is found, and nothing that dies, comes late or is forgotten changes a text.

The scripted worker asserts of every token that all positions before it hold its own prefix.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorserve.actors.protocol.step import Step
from actorserve.actors.protocol.topics.tiers import BlocksLoaded, Fetch, Fetched, ForgetTiers, LoadBlocks
from actorserve.actors.protocol.wire import pack, unpack
from actorserve.actors.scheduler.tiers import fetches
from actorserve.actors.scheduler.tiers.fetches import Fetches
from actorserve.shm.layout import HASH_BYTES
from tests.scheduler.engine_model import BLOCK, Bench, expected_answer, prompt_of
from tests.support.selection import slow

LONG = 5 * BLOCK + 3


class TierBench(Bench):
    """A bench with a porter that keeps all that the KV map has called cached, and answers when it is told to."""

    def __init__(self, **options: Any) -> None:
        self.kept: dict[bytes, list[bytes | None]] = {}
        self.asked: list[Fetch] = []
        self.lane: list[Step | LoadBlocks] = []  # to the worker: all of `planned`, and copies between them
        self.arena: list[list[bytes | None]] = []
        self.lives = self.loaded = 0
        super().__init__(**options)

    def birth(self) -> None:
        super().birth()
        self.lives += 1
        self.scheduler.tiers = self.tiers = Fetches(self.scheduler, 0, self.lives, 1)
        self.scheduler.planner.loading = self.tiers.loading

    def submit(self, *args: Any, **params: Any) -> int:
        ref = super().submit(*args, **params)
        self.tiers.admitted(ref)
        return ref

    def store(self) -> None:
        """The porter looks through the KV map."""
        for block, key in self.kv.cached().items():
            self.kept[key] = self.worker.kv[block * BLOCK : (block + 1) * BLOCK]

    def turn(self, is_up: bool = True) -> None:
        """The scheduler's; what it posts is in the lanes."""
        self.tiers.turn(is_up)
        while self.tiers.outbox:
            message = self.tiers.outbox.popleft()
            if isinstance(message, Fetch):
                self.asked.append(message)
            elif isinstance(message, LoadBlocks):
                self.lane.append(message)
            else:
                assert isinstance(message, ForgetTiers)
                self.kept.clear()

    def answer_fetch(self) -> None:
        """The oldest."""
        fetch = self.asked.pop(0)
        slots = []
        for start in range(0, len(fetch.keys), HASH_BYTES):
            contents = self.kept.get(fetch.keys[start : start + HASH_BYTES])
            if contents is None:
                break
            slots.append(len(self.arena))
            self.arena.append(contents)
        self.tiers.fetched(Fetched(fetch.number, pack(slots)))

    def work(self) -> bool:
        message = self.lane.pop(0) if self.lane else None
        if not isinstance(message, LoadBlocks):
            return super().work()
        for block, slot in zip(unpack(message.packed_blocks), unpack(message.packed_slots), strict=True):
            self.worker.kv[block * BLOCK : (block + 1) * BLOCK] = self.arena[slot]
            self.loaded += 1
        self.tiers.loaded(BlocksLoaded(message.number, 0))
        self.scheduler.check_integrity()
        return True

    def plan(self) -> bool:
        if not super().plan():
            return False
        self.lane.append(self.planned[-1])
        return True

    def lose_worker(self) -> None:
        super().lose_worker()
        self.lane.clear()

    def run(self, turns: int = 10_000) -> None:
        for _ in range(turns):
            self.turn()
            while self.plan():
                pass
            if self.asked:
                self.answer_fetch()
            elif not self.work():
                assert not self.scheduler.sequences
                return
        raise AssertionError("it does not come to an end")


def ask(bench: TierBench, *seeds: int) -> list[int]:
    return [bench.submit(prompt_of(LONG, seed), 6) for seed in seeds]


def check(bench: TierBench, refs: list[int], *seeds: int) -> None:
    for ref, seed in zip(refs, seeds, strict=True):
        bench.check_end(ref, expected_answer(prompt_of(LONG, seed), 6))


def rebooted(*seeds: int, **options: Any) -> TierBench:
    """Where these prompts were computed once, by a worker that is gone."""
    bench = TierBench(**options)
    refs = ask(bench, *seeds)
    bench.run()
    check(bench, refs, *seeds)
    bench.store()
    bench.new_worker()
    bench.worker.computed_tokens = 0
    return bench


def test_what_was_computed_once_is_copied() -> None:
    bench = rebooted(1, 2)
    refs = ask(bench, 1, 2)
    bench.run()
    check(bench, refs, 1, 2)
    assert bench.loaded == 10 and bench.tiers.tokens == 10 * BLOCK
    assert bench.table.cached(refs[0]) == 5 * BLOCK, "its client is told"
    assert bench.worker.computed_tokens <= 2 * (3 + 6)


def test_who_waits_holds_nobody_up() -> None:
    bench = rebooted(1)
    waits, starts = bench.submit(prompt_of(LONG, 1), 6), bench.submit(prompt_of(BLOCK - 1, 9), 4)
    bench.turn()
    assert bench.plan() and bench.scheduler.sequences[waits].row is None
    assert bench.scheduler.sequences[starts].row is not None
    bench.run()
    check(bench, [waits], 1)


def test_two_that_want_the_same_are_one_fetch() -> None:
    bench = rebooted(1)
    refs = ask(bench, 1, 1)
    bench.turn()
    assert len(bench.asked) == 1 and bench.tiers.loading == set(refs)
    bench.run()
    check(bench, refs, 1, 1)
    assert bench.loaded == 5


def test_who_waited_in_vain_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = rebooted(1, 2, 3, 4)
    monkeypatch.setattr(fetches, "WAIT_S", 0.0)
    for count, seed in enumerate((1, 2, 3), 1):
        refs = ask(bench, seed)
        bench.turn()
        late = bench.asked.pop()
        bench.turn()
        assert not bench.tiers.loading and bench.tiers.late == count and bench.tiers.settled > late.number
        bench.tiers.fetched(Fetched(late.number, pack([0])))
        bench.run()
        check(bench, refs, seed)
    assert not bench.loaded, "an answer that comes late is none"
    refs = ask(bench, 4)
    bench.turn()
    assert not bench.asked, "after several nobody waits for a while"
    bench.run()
    check(bench, refs, 4)


def test_without_a_porter_nobody_waits() -> None:
    bench = rebooted(1)
    refs = ask(bench, 1)
    bench.turn(is_up=False)
    assert not bench.asked and not bench.tiers.loading
    bench.run()
    check(bench, refs, 1)


@pytest.mark.parametrize("when", ["asked", "copying"])
def test_a_reset_takes_what_is_on_its_way(when: str) -> None:
    bench = rebooted(1)
    refs = ask(bench, 1)
    bench.turn()
    if when == "copying":
        bench.answer_fetch()
        bench.turn()
    bench.scheduler.reset_prefix_cache()
    bench.run()
    check(bench, refs, 1)
    assert bench.table.cached(refs[0]) == 0 and bench.tiers.tokens == 0
    later = ask(bench, 1)
    bench.run()
    assert bench.table.cached(later[0]) == 5 * BLOCK, "what was computed since is found"


def test_a_scheduler_dies_while_blocks_are_copied() -> None:
    bench = rebooted(1)
    refs = ask(bench, 1)
    bench.turn()
    bench.answer_fetch()
    bench.turn()
    before = bench.tiers.settled
    bench.new_scheduler()
    assert bench.tiers.settled > before, "what it had asked for is over"
    bench.run()
    check(bench, refs, 1)


def test_only_what_all_of_a_group_have_is_cached() -> None:
    bench = rebooted(1)
    bench.tiers._workers = 2
    ask(bench, 1)
    bench.turn()
    bench.answer_fetch()
    bench.turn()
    copy = bench.lane.pop()
    assert isinstance(copy, LoadBlocks)
    for rank in (0, 0, 1):
        assert not bench.kv.cached()
        bench.tiers.loaded(BlocksLoaded(copy.number, rank))
    assert len(bench.kv.cached()) == 5


def test_a_full_memory_is_no_reason_to_stop() -> None:
    bench = rebooted(1, 2, 3, num_blocks=14, max_num_seqs=3)
    refs = ask(bench, 1, 2, 3)
    bench.run()
    check(bench, refs, 1, 2, 3)


@pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 12))])
def test_no_order_of_deaths_changes_a_text(seed: int) -> None:
    chance = random.Random(seed)
    bench = TierBench(num_blocks=chance.choice((20, 40)), max_num_seqs=4)
    running: dict[int, int] = {}
    for _ in range(400):
        match chance.randrange(12):
            case 0 | 1 if len(running) < 10:
                which = chance.randrange(5)
                running[bench.submit(prompt_of(LONG, which), 6)] = which
            case 2 if bench.asked:
                bench.answer_fetch()
            case 3 if bench.asked and chance.random() < 0.2:  # the porter dies with what it was asked
                number = bench.asked.pop(0).number
                if number in bench.tiers._asked:
                    bench.tiers._asked[number].deadline = 0.0
            case 4 if chance.random() < 0.1:
                bench.asked.clear()
                bench.new_scheduler()
            case 5 if chance.random() < 0.1:
                bench.new_worker()
            case 6 if chance.random() < 0.1:
                bench.scheduler.reset_prefix_cache()
            case 7:
                bench.store()
            case _:
                bench.turn()
                bench.plan()
                bench.work()
        for ref in [ref for ref in running if bench.table.finish(ref)]:
            check(bench, [ref], running.pop(ref))
    bench.run()
    for ref, which in running.items():
        check(bench, [ref], which)


@pytest.mark.parametrize("first", ["", "10.0.0.1:8200"])
def test_who_names_a_server_joins_no_fetch_that_asks_another(first: str) -> None:
    """Of one prompt: what nobody has beside may be there."""
    bench, other = TierBench(), "10.0.0.2:8200"
    refs = [bench.submit(prompt_of(LONG, 1), 6, kv_peer=peer) for peer in (first, other, other)]
    bench.turn()
    assert [fetch.peer for fetch in bench.asked] == [first, other]
    bench.run()
    check(bench, refs, 1, 1, 1)
    assert not bench.tiers.loading


def test_who_names_the_server_that_has_its_blocks_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The porter is told which one; nobody else is made to wait for it."""
    monkeypatch.setattr(fetches, "WAIT_S", 0.0)
    bench = TierBench()
    named, plain = bench.submit(prompt_of(LONG, 1), 6, kv_peer="10.0.0.1:8200"), bench.submit(prompt_of(LONG, 2), 6)
    bench.turn()
    assert [fetch.peer for fetch in bench.asked] == ["10.0.0.1:8200", ""]
    bench.turn()
    assert bench.tiers.loading == {named} and bench.tiers.late == 1
    bench.asked.pop()
    bench.run()
    check(bench, [named, plain], 1, 2)
