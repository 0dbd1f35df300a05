"""Mailboxes: the lanes that lead to an actor, one word that says that it sleeps, and one eventfd that wakes it.

Layout of a mailbox: one cache line, word 0 = sleeping. The owner writes 1 before it sleeps and 0 after; a producer that
finds 1 writes 0 and then the eventfd, so that one of many producers pays for the wake-up. (The one word with two
writers: a lost 0 costs one system call, a lost 1 cannot be, since only the owner writes it.)

The owner looks at its lanes once more between `sleeping = 1` and its wait; with a full fence on both sides either it
sees the record, or the producer sees that it sleeps.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from .fence import full_fence
from .ring import Consumer, Producer
from .segment import Segment

CACHE_LINE = 64
DRAIN_BYTES = 64 << 10  # of one lane in one turn, so that no lane starves another
BATCH_BYTES = 64 << 10  # a record of several messages is not made longer than this
BACKSTOP_S = 1.0  # the longest sleep
ONE = (1).to_bytes(8, "little")


def mailbox_bytes() -> int:
    """Bytes of one mailbox's words."""
    return CACHE_LINE


def wake(eventfd: int) -> None:
    """Wake the owner of this eventfd whether it sleeps or not. A counter at its limit is a wake-up as well."""
    try:
        os.write(eventfd, ONE)
    except BlockingIOError:  # 2**64 - 2 wake-ups that nobody has read: it is readable
        return


class Outbox:
    """The sending side of one lane: messages of one turn leave as one record."""

    def __init__(self, producer: Producer, sleeping_offset: int, eventfd: int) -> None:
        self._producer = producer
        self._words = producer.words
        self._sleeping = sleeping_offset // 8
        self._eventfd = eventfd
        self._queue: list[msgspec.Struct] = []
        self._overflow: deque[tuple[bytes, int]] = deque()  # encoded records that found no room, and their messages
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def backlog(self) -> int:
        """Messages that were posted and are not published."""
        return len(self._queue) + sum(count for _, count in self._overflow)

    @property
    def max_message(self) -> int:
        """Bytes that one encoded message may have."""
        return self._producer.max_payload - 8

    def post(self, message: msgspec.Struct) -> None:
        """Queue a message for the next flush."""
        self._queue.append(message)

    def flush(self) -> bool:
        """Publish what is queued. False when the lane is full and something waits for the next flush."""
        if self._queue:
            self._overflow.extend(self._records())
            self._queue.clear()
        if not self._overflow:
            return True
        sent = False
        while self._overflow and self._producer.try_send(self._overflow[0][0]):
            self._overflow.popleft()
            sent = True
        if sent:
            full_fence()  # SYNC: mailbox.sleep, pairs with Inbox.arm
            if self._words[self._sleeping]:
                self._words[self._sleeping] = 0
                wake(self._eventfd)
        return not self._overflow

    def wake(self) -> None:
        """Wake the receiver, whatever its sleeping word says."""
        wake(self._eventfd)

    def _records(self) -> Iterator[tuple[bytes, int]]:
        """The queue as encoded lists, in one record if that is short enough."""
        whole = self._encode(self._queue)
        if len(whole) <= min(BATCH_BYTES, self._producer.max_payload):
            yield whole, len(self._queue)
            return
        batch: list[msgspec.Raw] = []
        size = 0
        for message in self._queue:
            raw = self._encode(message)
            if batch and size + len(raw) > BATCH_BYTES:
                yield self._encode(batch), len(batch)
                batch, size = [], 0
            batch.append(msgspec.Raw(raw))
            size += len(raw)
        yield self._encode(batch), len(batch)


class Inbox:
    """All lanes that lead to one actor."""

    def __init__(
        self, segment: Segment, sleeping_offset: int, lanes: Mapping[str, Consumer], eventfd: int, decode: Any
    ) -> None:
        self._words = segment.words
        self._sleeping = sleeping_offset // 8
        self._lanes = dict(lanes)
        self._consumers = list(lanes.values())
        self._eventfd = eventfd
        self._decode = msgspec.msgpack.Decoder(list[decode]).decode
        self._epoll = select.epoll()
        self._epoll.register(eventfd, select.EPOLLIN | select.EPOLLET)
        self._words[self._sleeping] = 0  # a predecessor may have died asleep

    def drain(self, handle: Callable[[Any], None]) -> int:
        """Handle what has come, a bounded amount of each lane; returns the number of messages. See `commit`."""
        count = 0
        for consumer in self._consumers:
            room = DRAIN_BYTES
            while room > 0 and (record := consumer.receive()) is not None:
                room -= len(record)
                for message in self._decode(record):
                    handle(message)
                    count += 1
        return count

    def commit(self) -> None:
        """What was drained is done with, and what it caused is published: it will not come again."""
        for consumer in self._consumers:
            consumer.commit()

    def wait(self, timeout: float) -> None:
        """Sleep until something comes, or for so many seconds, at most BACKSTOP_S. For blocking actors."""
        if self.arm():
            self._epoll.poll(min(timeout, BACKSTOP_S))  # edge-triggered: the eventfd is never read
        self._words[self._sleeping] = 0

    def fileno(self) -> int:
        """The eventfd, for an event loop."""
        return self._eventfd

    def arm(self) -> bool:
        """Say that the owner sleeps; False, and it does not, if something is there already."""
        self._words[self._sleeping] = 1
        full_fence()  # SYNC: mailbox.sleep, pairs with Outbox.flush
        if any(consumer.pending() for consumer in self._consumers):
            self._words[self._sleeping] = 0
            return False
        return True

    def disarm(self) -> None:
        """The owner is awake; swallow the wake-up. For event loops, whose readers are level-triggered."""
        self._words[self._sleeping] = 0
        try:
            os.read(self._eventfd, 8)
        except BlockingIOError:  # it was woken by something else
            return

    def depths(self) -> dict[str, int]:
        """Bytes in each lane that are not committed."""
        return {name: consumer.depth for name, consumer in self._lanes.items()}

    def close(self) -> None:
        """Give all lanes up."""
        self._epoll.close()
        for consumer in self._consumers:
            consumer.close()
