"""What a link writes of its engine's sequences: what comes twice, with holes, late, for others; who is to blame."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import pytest

from actorserve.actors.link.sequences import Sequences
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.scheduler.metrics.request_stats import RequestStats
from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.segment import Segment
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import RequestTable, slot_of, table_bytes

SLOTS, TOKENS, BLOCK = 4, 256, 16
PROMPT = list(range(40))
PARAMS = msgspec.msgpack.encode(Generation(sampling=Sampling(seed=1)))


class Bench:
    """One link's table, with engine 1 its own."""

    lives = 0

    def __init__(self, most: int = 3) -> None:
        sizes = SLOTS, TOKENS, BLOCK, 4096
        self.segment = Segment.create(table_bytes(*sizes), "test")
        self.table = RequestTable.create(self.segment, 0, *sizes)
        self.area = Logprobs(Logprobs.create(SLOTS, TOKENS), SLOTS, TOKENS)
        self.kv = KVMap.private(SLOTS, TOKENS // BLOCK, 64)
        self.most = most
        self.dropped: list[int] = []
        self.sequences = self.successor()

    def successor(self) -> Sequences:
        """The next life, of the same table and map."""
        self.lives += 1
        made = Sequences(self.table, self.kv, RequestStats(self.table), self.area, self.most, self.lives)
        made.drop = lambda held: self.dropped.append(held.ref)
        return made

    def open(self, slot: int = 0) -> int:
        ref = self.table.open_slot(slot, PARAMS, 1)
        self.table.write_prompt(ref, PROMPT, b"", 100, engine=1)
        return ref

    def generated(self, ref: int) -> list[int]:
        return self.table.token_ids(ref, len(PROMPT), len(PROMPT) + self.table.generated(ref)).tolist()


def moved(ref: int, start: int, tokens: list[int], finish: int = 0) -> wire.Progress:
    return wire.Progress([wire.Moved(ref, start, array("i", tokens).tobytes(), finish, cached=16)])


def test_tokens_that_come_twice_are_appended_once() -> None:
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    bench.sequences.progress(moved(ref, 0, [7, 8]))
    bench.sequences.progress(moved(ref, 1, [8, 9]))
    bench.sequences.progress(moved(ref, 0, [7]))
    assert bench.generated(ref) == [7, 8, 9]
    assert bench.table.cached(ref) == 16
    assert list(bench.sequences.moved) == [ref]


def test_the_load_that_a_sequence_went_over_to_is_named_there() -> None:
    bench = Bench()
    ref = bench.open()
    bench.table.set_load(ref, 5)
    bench.sequences.adapter_of = lambda ref: bench.table.load(ref)
    bench.sequences.admit(ref)
    record = bench.sequences.record_of(bench.sequences.held[ref])
    assert msgspec.msgpack.decode(record.params, type=Generation).adapter == 5


def test_a_hole_is_no_progress() -> None:
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    with pytest.raises(ValueError, match="tokens from 2 on, where there are 0"):
        bench.sequences.progress(moved(ref, 2, [9]))
    assert bench.generated(ref) == []


def test_what_is_of_nobody_here_is_dropped() -> None:
    """It was given away, or has ended; or another use of the slot is meant."""
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    bench.sequences.let_go(bench.sequences.held[ref])
    bench.sequences.progress(moved(ref, 0, [7], int(Finish.STOP)))
    bench.sequences.logprobs(wire.Logprobs(ref, 3, 1, bytes(24)))
    assert (bench.generated(ref), bench.table.finish(ref), bench.dropped) == ([], 0, [ref])


def test_an_end_is_told_again_by_a_successor_until_it_was_published() -> None:
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    bench.sequences.progress(moved(ref, 0, [7], int(Finish.LENGTH)))
    assert bench.table.finish(ref) == Finish.LENGTH and not bench.sequences.held
    again = bench.successor()
    again.admit(ref, recovers=True)
    assert list(again.moved) == [ref]
    again.published()
    last = bench.successor()
    last.admit(ref, recovers=True)
    assert not last.moved and not last.held


def test_a_successor_names_the_log_as_it_stands() -> None:
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    bench.sequences.progress(moved(ref, 0, [7, 8, 9]))
    again = bench.successor()
    again.admit(ref, recovers=True)
    record = again.record_of(again.held[ref])
    assert np.frombuffer(record.prompt, np.int32).tolist() == PROMPT
    assert np.frombuffer(record.generated, np.int32).tolist() == [7, 8, 9]
    assert (record.params, record.limit) == (PARAMS, 100)


def test_no_more_are_taken_than_a_scheduler_takes_but_those_that_have_begun() -> None:
    bench = Bench(most=1)
    first, second, third = bench.open(0), bench.open(1), bench.open(2)
    bench.table.append(third, [5])
    for ref in (first, second, third):
        bench.sequences.admit(ref)
    assert list(bench.sequences.held) == [first, third]
    assert bench.table.finish(second) == Finish.REJECTED and bench.sequences.rejected == 1


def test_logprobs_come_as_they_lay_and_leave_no_earlier_uses() -> None:
    bench = Bench()
    there = Logprobs(Logprobs.create(SLOTS, TOKENS), SLOTS, TOKENS)
    start = there.start(2, 40)
    there.map[start : start + 24] = bytes(range(24))
    there.copy_listed(2, 40, 1, 2, bytes(range(8)))
    ref = bench.open(1)
    bench.sequences.admit(ref)
    entries, listed = there.copy_out(2, 40, 1, 2), there.copy_listed(2, 40, 1, 2)
    bench.sequences.logprobs(wire.Logprobs(ref, 40, 1, entries, listed))
    assert bench.area.read(1, 40, 2) == there.read(2, 40, 2)
    assert bench.area.read_listed(1, 40, 2) == there.read_listed(2, 40, 2)
    bench.sequences.end(ref, Finish.ABORT)
    after = bench.open(1)
    bench.sequences.admit(after)
    bench.sequences.logprobs(wire.Logprobs(after, 41, 1, entries))
    assert bench.area.read(1, 40, 0) == [(0, 0.0)]


def test_who_is_alone_at_a_third_death_is_given_up() -> None:
    """With others at the first two; whoever goes on behind a death is suspect of it no more."""
    bench = Bench()
    deadly, other = bench.open(0), bench.open(1)
    for ref in (deadly, other):
        bench.sequences.admit(ref)
    for _ in range(2):
        assert bench.sequences.blame([deadly, other]) == []
    bench.sequences.progress(moved(other, 0, list(range(20))))
    assert bench.sequences.held[other].deaths == 0
    assert bench.sequences.blame([other]) == []
    assert bench.sequences.blame([deadly]) == [deadly]
    assert bench.table.finish(deadly) == Finish.ERROR and slot_of(deadly) == 0
    assert list(bench.sequences.held) == [other]


def test_an_end_of_a_shorter_log_is_none() -> None:
    """It was given to another engine, which has gone on with it, and came back: what was on its way meanwhile is old.
    The engine is told of it once more, since it counts it as ended.
    """
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    bench.sequences.mark_sent(bench.sequences.held[ref], True)
    bench.table.append(ref, [7, 8, 9])
    bench.sequences.held[ref].num_generated_tokens = 3
    bench.sequences.progress(moved(ref, 1, [8], int(Finish.STOP)))
    assert not bench.table.finish(ref) and not bench.sequences.held[ref].is_sent
    bench.sequences.progress(moved(ref, 2, [9, 10], int(Finish.STOP)))
    assert bench.table.finish(ref) == Finish.STOP and bench.generated(ref) == [7, 8, 9, 10]


def test_what_was_said_of_one_before_it_came_back_is_dropped() -> None:
    """Another engine has drawn other tokens behind the same: what this one had on the way goes on behind its own."""
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    first = bench.sequences.record_of(bench.sequences.held[ref])
    bench.sequences.let_go(bench.sequences.held[ref])
    bench.table.append(ref, [7, 8])
    bench.sequences.admit(ref)
    again = bench.sequences.record_of(bench.sequences.held[ref])
    old = moved(ref, 0, [7, 9, 10], int(Finish.STOP)).moved[0]
    entries = np.ones(6, np.int32).tobytes()
    bench.sequences.progress(wire.Progress([msgspec.structs.replace(old, hosting=first.hosting)]))
    bench.sequences.logprobs(wire.Logprobs(ref, len(PROMPT), 1, entries, hosting=first.hosting))
    assert bench.generated(ref) == [7, 8] and not bench.table.finish(ref)
    assert bench.area.read(slot_of(ref), len(PROMPT), 2) == [(0, 0.0)] * 3
    new = moved(ref, 2, [11], int(Finish.STOP)).moved[0]
    bench.sequences.logprobs(wire.Logprobs(ref, len(PROMPT), 1, entries, hosting=again.hosting))
    bench.sequences.progress(wire.Progress([msgspec.structs.replace(new, hosting=again.hosting)]))
    assert bench.generated(ref) == [7, 8, 11] and bench.table.finish(ref) == Finish.STOP
    assert bench.area.read(slot_of(ref), len(PROMPT), 0)[0][0] == 1


def test_what_was_said_to_the_life_before_is_not_taken_for_an_answer_to_this_one() -> None:
    """The steward may tell more of its Begin on this one's connection, before it has read the next one."""
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    old = bench.sequences.record_of(bench.sequences.held[ref])
    bench.table.append(ref, [7, 8])  # elsewhere
    bench.sequences = bench.successor()
    bench.sequences.admit(ref, recovers=True)
    new = bench.sequences.record_of(bench.sequences.held[ref])
    late = moved(ref, 0, [7, 9, 10]).moved[0]
    bench.sequences.progress(wire.Progress([msgspec.structs.replace(late, hosting=old.hosting)]))
    assert bench.generated(ref) == [7, 8] and old.hosting != new.hosting


@pytest.mark.parametrize(
    "record",
    [wire.Logprobs(0, 40, 0, b""), wire.Moved(0, 0, b"", 99), wire.Moved(0, 0, bytes(3))],
    ids=["no positions", "no end", "half a token"],
)
def test_what_cannot_be_is_said_to_be_so(record: wire.Logprobs | wire.Moved) -> None:
    """By errors after which the connection is ended, and not the link."""
    bench = Bench()
    ref = bench.open()
    bench.sequences.admit(ref)
    of_it = msgspec.structs.replace(record, ref=ref)
    with pytest.raises((ValueError, IndexError)):
        bench.sequences.logprobs(of_it) if isinstance(of_it, wire.Logprobs) else bench.sequences.progress(
            wire.Progress([of_it])
        )
