"""Small things that the ring's tests share."""

from __future__ import annotations

from actorserve.shm.rings.ring import Consumer, Producer, header_bytes, ring_bytes
from actorserve.shm.segment import Segment


class Lane:
    """One ring in a segment of its own, and its ends."""

    def __init__(self, capacity: int = 256, offset: int = 64, readers: int = 1) -> None:
        self.capacity = capacity
        self.offset = offset
        self.readers = readers
        self.segment = Segment.create(offset + ring_bytes(capacity, readers), "test")

    def producer(self) -> Producer:
        return Producer(self.segment, self.offset, self.capacity, self.readers)

    def consumer(self, reader: int = 0) -> Consumer:
        return Consumer(self.segment, self.offset, self.capacity, self.readers, reader)

    def consumers(self) -> list[Consumer]:
        """One for each reader."""
        return [self.consumer(reader) for reader in range(self.readers)]

    @property
    def first_word(self) -> int:
        return self.offset // 8

    def place(self, position: int) -> int:
        """The word of the data at this position."""
        return (self.offset + header_bytes(self.readers) + position % self.capacity) // 8


def receive_all(consumer: Consumer) -> list[bytes]:
    """All records that are there, uncommitted."""
    records = []
    while (record := consumer.receive()) is not None:
        records.append(record)
    return records


def payload(number: int, length: int) -> bytes:
    """Bytes that tell records apart."""
    return bytes((number + index * 7) % 256 for index in range(length))


def advance(lane: Lane, position: int) -> None:
    """Bring an unused ring to a position (a multiple of 8 and not 8) by way of records that are read."""
    producer, consumers = lane.producer(), lane.consumers()
    at = 0
    while at < position:
        step = min(position - at, lane.capacity // 2)
        step -= 8 if position - at - step == 8 else 0
        assert producer.try_send(bytes(step - 8))
        for consumer in consumers:
            consumer.receive()
            consumer.commit()
        at += step
    for end in (producer, *consumers):
        end.close()
