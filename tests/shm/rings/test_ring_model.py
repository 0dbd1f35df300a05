"""The ring against a list: any order of sending, receiving, committing, rewinding, and replacing an end."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .rings import Lane, payload

CAPACITY = 256
HEADER = 8


class RingModel(RuleBasedStateMachine):
    """`published` is everything ever sent; the consumer stands at `received`, and would start again at `committed`."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(CAPACITY)
        self.producer, self.consumer = self.lane.producer(), self.lane.consumer()
        self.published: list[bytes] = []
        self.ends: list[int] = []  # the position after each published record
        self.received = self.committed = 0

    def position(self, count: int) -> int:
        """Where the ring stands after so many records."""
        return self.ends[count - 1] if count else 0

    @rule(length=st.integers(0, CAPACITY // 2 - HEADER))
    def send(self, length: int) -> None:
        record = payload(len(self.published), length)
        start = self.position(len(self.published))
        need = HEADER + (length + 7) // 8 * 8
        end = start + need
        if start % CAPACITY + need > CAPACITY:
            end = (start // CAPACITY + 1) * CAPACITY + need
        has_room = end - self.position(self.committed) <= CAPACITY
        assert self.producer.try_send(record) == has_room
        if has_room:
            self.published.append(record)
            self.ends.append(end)

    @rule()
    def receive(self) -> None:
        if self.received < len(self.published):
            assert self.consumer.receive() == self.published[self.received]
            self.received += 1
        else:
            assert self.consumer.receive() is None

    @precondition(lambda self: self.received > self.committed)
    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        self.committed = self.received

    @precondition(lambda self: self.received > self.committed)
    @rule()
    def rewind(self) -> None:
        self.consumer.rewind()
        self.received = self.committed

    @rule()
    def replace_producer(self) -> None:
        self.producer.close()
        self.producer = self.lane.producer()

    @rule()
    def replace_consumer(self) -> None:
        self.consumer.close()
        self.consumer = self.lane.consumer()
        self.received = self.committed

    @invariant()
    def both_ends_agree(self) -> None:
        assert self.producer.sequence == len(self.published)
        assert self.consumer.pending() == (self.received < len(self.published))
        assert self.consumer.depth == self.position(len(self.published)) - self.position(self.received)

    def teardown(self) -> None:
        self.producer.close()
        self.consumer.close()
        self.lane.segment.close()


TestRingModel = RingModel.TestCase
TestRingModel.settings = settings(max_examples=60, stateful_step_count=60)
