"""Mailboxes: the lanes that lead to an actor, one word that says whether it sleeps, and one eventfd that wakes it.

Layout of a mailbox: one cache line, word 0 = sleeping, which only the owner writes: odd while it sleeps, even while it
is awake, and larger by one at each change. A producer that finds it odd writes the eventfd, once for each value: it
remembers which sleep it has ended, so that the word needs no second writer and a wake-up is not paid for twice.

The owner looks at its lanes once more between falling asleep and its wait; with a full fence on both sides either it
sees the record, or the producer sees that it sleeps. A producer that dies between the two owes a wake-up, as does one
that has published something for which nobody had to be woken yet: the supervisor writes every eventfd after a death.

A record is one msgpack list: its stamp, which is the CLOCK_MONOTONIC ns at which it was first offered to the lane, and
the list of its messages. So anyone can tell how old what waits is.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import msgspec

from ..fence import full_fence
from ..layout import CACHE_LINE, WORD_BYTES
from ..segment import Segment
from .ring import Consumer, Producer

DRAIN_BYTES = 64 << 10  # of one lane in one turn, so that no lane starves another
BATCH_BYTES = 64 << 10  # a record of several messages is not made longer than this
LIST_BYTES = 16  # the heads of both lists and the stamp take at most so many
STAMPED = 0x92  # how a record begins: a list of two (msgpack's fixarray)
STAMP_SIZES = {0xCF: 8, 0xCE: 4}  # bytes of a stamp by msgpack's sign of it: uint64, or 4 s after the machine's start
BACKSTOP_S = 1.0  # the longest sleep
BRIEF_S = 100e-6  # a sleep that costs more than the wait was worth ...
SPIN_S = 50e-6  # ... makes the next wait begin with looking for so long
MOST_UNLOOKED = 255  # waits that pass without looking, after looking in vain again and again


def mailbox_bytes() -> int:
    """Bytes of one mailbox's words."""
    return CACHE_LINE


def wake(eventfd: int) -> None:
    """Wake the owner of this eventfd whether it sleeps or not."""
    try:
        os.eventfd_write(eventfd, 1)
    except BlockingIOError:  # 2**64 - 2 wake-ups that nobody has read: its owner cannot miss them
        return


def stamp_of(head: bytes) -> int | None:
    """The stamp of a record by its first bytes; None if no Outbox made it."""
    if len(head) < 2 or head[0] != STAMPED:
        return None
    size = STAMP_SIZES.get(head[1], 0)
    return int.from_bytes(head[2 : 2 + size], "big") if 0 < size <= len(head) - 2 else None


class Outbox:
    """The sending side of one lane: messages of one turn leave as one record, a msgpack list.

    `others`: sleeping word and eventfd of each further receiver, where the lane's ring has several readers. While the
    lane is full because one of them stands still, what is posted waits here for all of them.
    """

    def __init__(
        self, producer: Producer, sleeping_offset: int, eventfd: int, others: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._producer = producer
        self._try_send = producer.try_send
        self._words = producer.words
        self._receivers = [(offset // WORD_BYTES, fd) for offset, fd in ((sleeping_offset, eventfd), *others)]
        self._ended_sleeps = {word: 0 for word, _ in self._receivers}  # its value that was answered with a wake-up
        self._queue: list[msgspec.Struct] = []
        self._overflow: deque[tuple[bytes, int]] = deque()  # encoded records that found no room, and their messages
        self._encode = msgspec.msgpack.Encoder().encode
        self._batch_bytes = min(BATCH_BYTES, producer.max_payload)

    @property
    def backlog(self) -> int:
        """Messages that were posted and are not published."""
        return len(self._queue) + sum(count for _, count in self._overflow)

    @property
    def max_message(self) -> int:
        """Bytes that one encoded message may have."""
        return self._producer.max_payload - LIST_BYTES

    def post(self, message: msgspec.Struct) -> None:
        """Queue a message for the next flush."""
        self._queue.append(message)

    def flush(self, wakes: bool = True) -> bool:
        """Publish what is queued. False when the lane is full and something waits for the next flush.

        Without `wakes` who sleeps finds it when it wakes for something else, and the caller owes it a `wake_sleepers`.
        ValueError if a message is longer than the lane takes: that one is dropped, all others are published or wait.
        """
        queue = self._queue
        if not self._overflow:
            if not queue:
                return True
            record = self._encode((monotonic_ns(), queue))
            if len(record) <= self._batch_bytes and self._try_send(record):
                queue.clear()
                if wakes:
                    self.wake_sleepers()
                return True
        refused = self._make_records(queue) if queue else []
        queue.clear()
        self._publish_overflow()
        if refused:
            raise ValueError(f"too long for its lane, which takes {self.max_message} bytes: {', '.join(refused)}")
        return not self._overflow

    def _publish_overflow(self) -> None:
        """Send what fits."""
        overflow, before = self._overflow, len(self._overflow)
        while overflow and self._try_send(overflow[0][0]):
            overflow.popleft()
        if len(overflow) < before:
            self.wake_sleepers()

    def wake_sleepers(self) -> None:
        """After a publication: wake each receiver that sleeps, unless this sleep of its was ended here already."""
        full_fence()  # SYNC: mailbox.sleep, pairs with Inbox.arm
        words, ended = self._words, self._ended_sleeps
        for word, eventfd in self._receivers:
            sleeping = words[word]
            if sleeping & 1 and sleeping != ended[word]:
                wake(eventfd)
                ended[word] = sleeping

    def close(self) -> None:
        """Give the lane up; what was not published is lost."""
        self._producer.close()

    def wake(self) -> None:
        """Wake the receivers, whatever their sleeping words say."""
        for _, eventfd in self._receivers:
            wake(eventfd)

    def _make_records(self, queue: Sequence[msgspec.Struct]) -> list[str]:
        """Append messages to the overflow as one record, or as several if that is too long; returns what never fits."""
        record = self._encode((monotonic_ns(), queue))
        count = len(queue)
        if len(record) <= self._batch_bytes or (count == 1 and len(record) <= self._producer.max_payload):
            self._overflow.append((record, count))
            return []
        if count == 1:
            return [f"{type(queue[0]).__name__} of {len(record):,} bytes"]
        return self._make_records(queue[: count // 2]) + self._make_records(queue[count // 2 :])


class Inbox:
    """All lanes that lead to one actor. Its owner drains, publishes what that caused, and then commits."""

    def __init__(
        self, segment: Segment, sleeping_offset: int, lanes: Mapping[str, Consumer], eventfd: int, decode: Any
    ) -> None:
        self._words = segment.words
        self._sleeping = sleeping_offset // WORD_BYTES
        self._consumers = list(lanes.values())
        self._numbers = {consumer: number for number, consumer in enumerate(self._consumers)}
        self.heard: Callable[[int, int, int], None] | None = None  # told of each record: lane, stamp, messages
        self._eventfd = eventfd
        self._decode = msgspec.msgpack.Decoder(tuple[int, list[decode]]).decode
        self.stamp_ns = 0  # of the record whose messages are handled, or were handled last
        self._epoll = select.epoll()
        self._epoll.register(eventfd, select.EPOLLIN | select.EPOLLET)
        self._sleeps = (self._words[self._sleeping] + 1) & ~1  # what the word is while awake: twice the sleeps so far
        self._brief = False  # the last wait was
        self._unlooked = self._pause = 0  # waits since it looked, and how many are to pass before it may again
        self._awake()  # a predecessor may have died asleep

    def drain(self, handle: Callable[[Any], None], one_record: bool = False) -> int:
        """Handle what has come, a bounded amount of each lane; returns the number of messages.

        What comes meanwhile is for the next turn, so that also who is never idle commits what it has done.
        Nothing is committed: that is for the caller, once it has published what the messages caused. If `handle`
        raises, all that was not committed comes again. `one_record`: no more than one, of the lanes in turn.
        """
        count, done = 0, False
        try:
            for consumer in self._consumers:
                end = consumer.position + min(consumer.depth, DRAIN_BYTES)
                while consumer.position < end and (record := consumer.receive()) is not None:
                    self.stamp_ns, messages = self._decode(record)
                    if self.heard is not None:
                        self.heard(self._numbers[consumer], self.stamp_ns, len(messages))
                    for message in messages:
                        handle(message)
                    count += len(messages)
                    if one_record:
                        self._consumers = [*(other for other in self._consumers if other is not consumer), consumer]
                        done = True
                        return count
            done = True
        finally:
            if not done:
                self.rewind()
        return count

    def commit(self) -> None:
        """What was drained is done with, and what it caused is published: it will not come again."""
        for consumer in self._consumers:
            consumer.commit()

    def rewind(self) -> None:
        """What was drained and not committed comes again."""
        for consumer in self._consumers:
            consumer.rewind()

    def wait(self, timeout: float) -> None:
        """Sleep until something comes, or for so many seconds, at most BACKSTOP_S. For blocking actors.

        In a quick exchange a sleep takes longer than the answer: there, and only there, it looks for a while first.
        Where the sender needs this very core, looking is in vain and delays it: the more often, the rarer it is done.
        """
        if self.has_come():
            return
        if self._unlooked < self._pause:
            self._unlooked += 1
            self._sleep(timeout)
        elif not (self._brief and self._look()):
            began = time.perf_counter()
            self._sleep(timeout)
            self._brief = time.perf_counter() - began < BRIEF_S

    def _sleep(self, timeout: float) -> None:
        if self.arm():
            self._epoll.poll(min(timeout, BACKSTOP_S))  # edge-triggered: the eventfd is never read
            self._awake()

    def _look(self) -> bool:
        """Look without sleeping; False if nothing came."""
        self._unlooked = 0
        began = now = time.perf_counter()
        while now - began < SPIN_S:
            if self.has_come():
                if now > began:  # it came while this looked, if perhaps by chance
                    self._pause //= 2
                return True
            now = time.perf_counter()
        self._pause = min(2 * self._pause + 1, MOST_UNLOOKED)
        return False

    def has_come(self) -> bool:
        """Is there a record in any lane?"""
        return any(map(Consumer.pending, self._consumers))

    def fileno(self) -> int:
        """The eventfd, for an event loop."""
        return self._eventfd

    def arm(self) -> bool:
        """Say that the owner sleeps; False, and it does not, if something is there already."""
        self._sleeps += 2
        self._words[self._sleeping] = self._sleeps - 1
        full_fence()  # SYNC: mailbox.sleep, pairs with Outbox.flush
        if self.has_come():
            self._awake()
            return False
        return True

    def disarm(self) -> None:
        """The owner is awake; swallow the wake-up. For event loops, whose readers are level-triggered."""
        self._awake()
        with contextlib.suppress(BlockingIOError):  # it was woken by something else
            os.eventfd_read(self._eventfd)

    def _awake(self) -> None:
        self._words[self._sleeping] = self._sleeps

    def close(self) -> None:
        """Give all lanes up."""
        self._epoll.close()
        for consumer in self._consumers:
            consumer.close()
