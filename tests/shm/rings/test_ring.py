"""One ring, both ends in one process: order, room, padding, redelivery, misuse."""

from __future__ import annotations

import gc

import pytest

from actorserve.shm.rings.ring import LAST, MAX_CAPACITY, READ, WRITTEN, RingBusy, RingCorrupt, header_bytes, ring_bytes

from .rings import Lane, advance, payload, receive_all

DATA = header_bytes() // 8


def test_records_come_in_order_and_whole() -> None:
    lane = Lane(1024)
    producer, consumer = lane.producer(), lane.consumer()
    sent = [payload(number, number) for number in range(30)]
    assert all(producer.try_send(record) for record in sent)
    assert consumer.pending() and consumer.depth > 0
    assert receive_all(consumer) == sent
    assert not consumer.pending() and consumer.depth == 0 and producer.sequence == 30


def test_anything_with_bytes_can_be_sent() -> None:
    lane = Lane()
    producer, consumer = lane.producer(), lane.consumer()
    for record in (b"abc", bytearray(b"def"), memoryview(b"ghi"), b""):
        assert producer.try_send(record)
    assert receive_all(consumer) == [b"abc", b"def", b"ghi", b""]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 40, 119, 120])
def test_wrap_wherever_the_ring_stands(length: int) -> None:
    """Head equals tail at every position: the largest record fits into an empty ring wherever that stands."""
    for position in range(0, 256, 8):
        if position != 8:
            check_wrap(position, length)


def check_wrap(position: int, length: int) -> None:
    lane = Lane(256)
    advance(lane, position)
    producer, consumer = lane.producer(), lane.consumer()
    sent: list[bytes] = []
    while producer.try_send(record := payload(len(sent), length)):
        sent.append(record)
    assert len(sent) >= 1 and len(sent) >= 256 // (length + 16) - 2
    assert receive_all(consumer) == sent, f"from position {position}"
    consumer.commit()
    assert producer.try_send(b"next") and consumer.receive() == b"next"


def test_full_never_overwrites_and_opens_by_commit_alone() -> None:
    lane = Lane(256)
    producer, consumer = lane.producer(), lane.consumer()
    sent = [payload(number, 56) for number in range(4)]
    assert [producer.try_send(record) for record in sent] == [True] * 4
    assert not producer.try_send(b""), "the ring is full to its last byte"
    assert consumer.receive() == sent[0]
    assert not producer.try_send(b""), "received is not committed"
    consumer.commit()
    assert producer.try_send(payload(9, 56)) and not producer.try_send(b"")
    assert receive_all(consumer) == [*sent[1:], payload(9, 56)]


def test_what_never_fits_is_refused_and_the_longest_is_not() -> None:
    lane = Lane(256)
    producer, consumer = lane.producer(), lane.consumer()
    assert producer.max_payload == 120
    with pytest.raises(ValueError, match="121 bytes are more than this ring takes, which is 120"):
        producer.try_send(bytes(121))
    assert producer.try_send(payload(1, 120)) and consumer.receive() == payload(1, 120)


def test_several_received_one_commit_and_the_rest_comes_again() -> None:
    lane = Lane(1024)
    producer, consumer = lane.producer(), lane.consumer()
    for number in range(6):
        producer.try_send(payload(number, 20))
    assert [consumer.receive() for _ in range(2)] == [payload(0, 20), payload(1, 20)]
    consumer.commit()
    consumer.commit()
    assert [consumer.receive() for _ in range(2)] == [payload(2, 20), payload(3, 20)]
    consumer.close()
    again = lane.consumer()
    assert receive_all(again) == [payload(number, 20) for number in range(2, 6)]
    again.rewind()
    assert receive_all(again) == [payload(number, 20) for number in range(2, 6)]


def test_a_successor_goes_on_with_the_sequence() -> None:
    lane = Lane(1024)
    consumer = lane.consumer()
    for number in range(8):
        producer = lane.producer()
        assert producer.sequence == number
        assert producer.try_send(payload(number, 11))
        producer.close()
    assert receive_all(consumer) == [payload(number, 11) for number in range(8)]


@pytest.mark.parametrize("sequence", [0xFFFFFFFE, 0xFFFFFFFF])
def test_sequence_and_position_go_past_32_bits(sequence: int) -> None:
    """A ring that has moved 4 GiB less a little: L's low half starts again, and so does the sequence."""
    lane = Lane(256)
    lane.producer().close()
    words, first, position = lane.segment.words, lane.first_word, (1 << 32) - 64
    words[first + WRITTEN] = words[first + READ] = position
    words[first + LAST] = sequence << 32 | position
    consumer = lane.consumer()
    for number in range(8):
        producer = lane.producer()
        assert producer.sequence == (sequence + number) & 0xFFFFFFFF
        assert producer.try_send(payload(number, 30)) and consumer.receive() == payload(number, 30)
        consumer.commit()
        producer.close()


def test_a_half_written_record_is_never_read_and_is_overwritten() -> None:
    lane = Lane(256)
    producer, consumer = lane.producer(), lane.consumer()
    assert producer.try_send(b"one")
    producer.close()
    words, first = lane.segment.words, lane.first_word
    words[lane.place(16)] = 2 << 32 | 5
    words[lane.place(24)] = 0x4141414141
    words[first + LAST] = 2 << 32 | 32
    assert receive_all(consumer) == [b"one"], "L has moved, W has not"
    successor = lane.producer()
    assert successor.sequence == 1
    assert successor.try_send(b"two") and receive_all(consumer) == [b"two"]


def test_each_end_is_taken_once() -> None:
    lane = Lane()
    producer, consumer = lane.producer(), lane.consumer()
    with pytest.raises(RingBusy, match="the producer of the ring at 64 is taken"):
        lane.producer()
    with pytest.raises(RingBusy, match="the consumer of the ring at 64 is taken"):
        lane.consumer()
    producer.close()
    producer.close()
    consumer.close()
    lane.producer().close()
    lane.consumer().close()


def test_a_dropped_end_is_free() -> None:
    lane = Lane()
    producer = lane.producer()
    assert producer.try_send(b"one")
    del producer
    gc.collect()
    assert lane.producer().try_send(b"two") and receive_all(lane.consumer()) == [b"one", b"two"]


def test_neighbours_do_not_disturb_each_other() -> None:
    lane = Lane(256)
    second = Lane(256, 64 + ring_bytes(256))
    lane.segment = second.segment
    ends = [(end.producer(), end.consumer()) for end in (lane, second)]
    for number, (producer, _) in enumerate(ends):
        while producer.try_send(payload(number, 40)):
            pass
    for number, (_, consumer) in enumerate(ends):
        assert set(receive_all(consumer)) == {payload(number, 40)}


def test_a_closed_end_raises() -> None:
    lane = Lane()
    producer, consumer = lane.producer(), lane.consumer()
    producer.close()
    consumer.close()
    for use in (lambda: producer.try_send(b""), consumer.receive, consumer.commit, consumer.pending):
        with pytest.raises(ValueError, match="released memoryview"):
            use()


@pytest.mark.parametrize("capacity", [0, -64, 8, 100, MAX_CAPACITY + 64])
def test_capacities_that_cannot_be(capacity: int) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        ring_bytes(capacity)


@pytest.mark.parametrize("offset", [-64, 8, 4096])
def test_places_that_cannot_be(offset: int) -> None:
    lane = Lane()
    lane.offset = offset
    with pytest.raises(ValueError, match="can lie at"):
        lane.producer()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (DATA, 1 << 32 | 9),  # longer than what is written
        (DATA, 1 << 32 | 0xFFFFFFFE),
        (DATA, 1 << 32 | 0xFFFFFFFF),  # a wrap mark that leads beyond W
        (DATA + 2, 3 << 32 | 8),  # the second record has the third's sequence
        (DATA + 2, 1 << 32 | 8),
        (0, 7),  # no magic
        (1, 512),  # another capacity
    ],
)
def test_what_no_producer_writes_is_reported(word: int, value: int) -> None:
    lane = Lane(256)
    producer, consumer = lane.producer(), lane.consumer()
    assert producer.try_send(payload(1, 8)) and producer.try_send(payload(2, 8))
    lane.segment.words[lane.first_word + word] = value
    if word == DATA:
        lane.segment.words[lane.first_word + WRITTEN] = 16
    if word == DATA + 2:
        assert consumer.receive() == payload(1, 8)
    for _ in range(2):
        with pytest.raises(RingCorrupt):
            consumer.receive()


@pytest.mark.parametrize(("word", "value"), [(0, 7), (1, 512), (READ, 800), (WRITTEN, 1 << 20)])
def test_attaching_to_what_is_no_ring(word: int, value: int) -> None:
    lane = Lane(256)
    lane.producer().close()
    lane.segment.words[lane.first_word + word] = value
    with pytest.raises(RingCorrupt):
        lane.producer()
    with pytest.raises(RingCorrupt):
        lane.consumer()
    lane.segment.words[lane.first_word + READ] = lane.segment.words[lane.first_word + WRITTEN] = 0


def test_the_consumer_may_come_first() -> None:
    lane = Lane()
    consumer = lane.consumer()
    assert not consumer.pending() and consumer.receive() is None
    consumer.commit()
    producer = lane.producer()
    assert producer.try_send(b"hello") and consumer.pending() and consumer.receive() == b"hello"
