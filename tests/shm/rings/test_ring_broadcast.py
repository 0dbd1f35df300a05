"""One ring with several readers, all ends in one process: each gets everything, and none is overtaken."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actorserve.shm.rings.ring import READ, Consumer, RingBusy, RingCorrupt, header_bytes, ring_bytes

from .rings import Lane, advance, payload, receive_all

CAPACITY = 256
HEADER = 8
MOST = 3  # readers of the model


@pytest.mark.parametrize("readers", [2, 3, 8])
@pytest.mark.parametrize("position", [0, 16, 128, 200, 240, 248])
def test_each_reader_gets_everything_wherever_the_ring_stands(position: int, readers: int) -> None:
    lane = Lane(CAPACITY, readers=readers)
    advance(lane, position)
    producer, consumers = lane.producer(), lane.consumers()
    for number in range(40):
        record = payload(number, number * 7 % 121)
        assert producer.try_send(record)
        for consumer in consumers:
            assert consumer.receive() == record and not consumer.pending()
            consumer.commit()


def test_the_slowest_decides_whether_there_is_room() -> None:
    lane = Lane(CAPACITY, readers=3)
    producer, (first, second, third) = lane.producer(), lane.consumers()
    sent = [payload(number, 56) for number in range(4)]
    assert all(producer.try_send(record) for record in sent) and not producer.try_send(b"")
    for consumer in (third, first):
        assert receive_all(consumer) == sent
        consumer.commit()
        assert not producer.try_send(b""), "one has read nothing"
    assert second.depth == CAPACITY
    assert second.receive() == sent[0]
    second.commit()
    assert producer.try_send(payload(4, 56)) and not producer.try_send(b"")
    assert receive_all(first) == receive_all(third) == [payload(4, 56)]
    assert receive_all(second) == [*sent[1:], payload(4, 56)], "what it has not read was not written over"


def test_who_comes_again_goes_on_where_it_was() -> None:
    lane = Lane(1024, readers=2)
    producer, (first, second) = lane.producer(), lane.consumers()
    sent = [payload(number, 20) for number in range(6)]
    assert all(producer.try_send(record) for record in sent)
    for consumer, count in ((first, 5), (second, 2)):
        for _ in range(count):
            consumer.receive()
        consumer.commit()
        consumer.receive()
        consumer.close()
    producer.close()
    assert [receive_all(consumer) for consumer in lane.consumers()] == [sent[5:], sent[2:]]


def test_a_producer_that_comes_again_knows_the_slowest() -> None:
    lane = Lane(CAPACITY, readers=2)
    producer, (first, second) = lane.producer(), lane.consumers()
    assert all(producer.try_send(payload(number, 56)) for number in range(4))
    receive_all(first)
    first.commit()
    producer.close()
    assert not lane.producer().try_send(b"")
    assert receive_all(second) == [payload(number, 56) for number in range(4)]


def test_each_reader_is_taken_once() -> None:
    lane = Lane(readers=2)
    first, second = lane.consumers()
    for reader, name in enumerate(("the consumer", "reader 1: the consumer")):
        with pytest.raises(RingBusy, match=f"^{name} of the ring at 64 is taken"):
            lane.consumer(reader)
    first.close()
    lane.consumer(0).close()
    with pytest.raises(RingBusy):
        lane.consumer(1)
    second.close()
    lane.consumer(1).close()


def test_each_reader_writes_to_its_own_cache_line() -> None:
    lane = Lane(readers=3)
    producer, consumers = lane.producer(), lane.consumers()
    producer.try_send(b"")
    for reader, consumer in enumerate(consumers):
        before = bytes(lane.segment.map)
        consumer.receive()
        consumer.commit()
        after = bytes(lane.segment.map)
        assert {at // 64 for at in range(len(after)) if after[at] != before[at]} == {1 + 2 + reader}


def test_with_one_reader_the_layout_is_the_plain_one() -> None:
    assert (header_bytes(), ring_bytes(256)) == (192, 448) and ring_bytes(256, 3) == 448 + 2 * 64
    lane = Lane(256)
    assert lane.producer().try_send(b"abc")
    assert list(lane.segment.words[8:35]) == [
        *(0x31474E4952544341, 256, 0, 0, 0, 0, 0, 0),
        *(16, 1 << 32 | 16, 0, 0, 0, 0, 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0),
        *(1 << 32 | 3, int.from_bytes(b"abc", "little"), 0),
    ]


def test_another_number_of_readers_is_another_ring() -> None:
    lane = Lane(256, readers=2)
    lane.producer().close()
    lane.readers = 1
    with pytest.raises(RingCorrupt, match="has 2 readers, not 1"):
        lane.producer()
    with pytest.raises(RingCorrupt, match="has 2 readers, not 1"):
        lane.consumer()


def test_each_reader_is_checked_when_a_producer_comes() -> None:
    lane = Lane(256, readers=2)
    lane.producer().close()
    lane.segment.words[lane.first_word + READ + 8] = 8
    with pytest.raises(RingCorrupt, match="8 was read, 0 written"):
        lane.producer()
    lane.consumer(0).close()
    with pytest.raises(RingCorrupt):
        lane.consumer(1)


@pytest.mark.parametrize(("readers", "reader"), [(2, 2), (2, -1), (1, 1), (0, 0)])
def test_readers_that_cannot_be(readers: int, reader: int) -> None:
    lane = Lane(readers=2)
    with pytest.raises(ValueError, match=f"a ring of {readers} has no reader {reader}"):
        Consumer(lane.segment, lane.offset, lane.capacity, readers, reader)
    with pytest.raises(ValueError, match="at least one reader"):
        ring_bytes(64, 0)


class BroadcastModel(RuleBasedStateMachine):
    """`published` is everything ever sent; each reader stands at its `received`, and would start at its `committed`."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(CAPACITY, readers=MOST)
        self.producer, self.consumers = self.lane.producer(), self.lane.consumers()
        self.published: list[bytes] = []
        self.ends = [0]  # the position after so many records
        self.received, self.committed = [0] * MOST, [0] * MOST

    @rule(length=st.integers(0, CAPACITY // 2 - HEADER))
    def send(self, length: int) -> None:
        record = payload(len(self.published), length)
        start, need = self.ends[-1], HEADER + (length + 7) // 8 * 8
        end = start + need
        if start % CAPACITY + need > CAPACITY:
            end = (start // CAPACITY + 1) * CAPACITY + need
        has_room = end - self.ends[min(self.committed)] <= CAPACITY
        assert self.producer.try_send(record) == has_room
        if has_room:
            self.published.append(record)
            self.ends.append(end)

    @rule(reader=st.integers(0, MOST - 1), most=st.integers(1, 4))
    def receive(self, reader: int, most: int) -> None:
        for _ in range(most):
            left = self.published[self.received[reader] :]
            assert self.consumers[reader].receive() == (left[0] if left else None)
            self.received[reader] += bool(left)

    @rule(reader=st.integers(0, MOST - 1))
    def commit(self, reader: int) -> None:
        self.consumers[reader].commit()
        self.committed[reader] = self.received[reader]

    @rule(reader=st.integers(0, MOST - 1), dies=st.booleans())
    def begin_again(self, reader: int, dies: bool) -> None:
        if dies:
            self.consumers[reader].close()
            self.consumers[reader] = self.lane.consumer(reader)
        else:
            self.consumers[reader].rewind()
        self.received[reader] = self.committed[reader]

    @rule()
    def replace_producer(self) -> None:
        self.producer.close()
        self.producer = self.lane.producer()

    @invariant()
    def all_ends_agree(self) -> None:
        assert self.producer.sequence == len(self.published)
        for consumer, received in zip(self.consumers, self.received, strict=True):
            assert consumer.pending() == (received < len(self.published))
            assert consumer.depth == self.ends[-1] - self.ends[received]

    def teardown(self) -> None:
        for end in (self.producer, *self.consumers):
            end.close()
        self.lane.segment.close()


TestBroadcastModel = BroadcastModel.TestCase
TestBroadcastModel.settings = settings(max_examples=60, stateful_step_count=60)
