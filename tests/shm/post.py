"""One mailbox with two lanes, and the messages that go through them in tests."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from actorserve.shm.rings.mailbox import Inbox, Outbox, mailbox_bytes
from actorserve.shm.rings.ring import Consumer, Producer, ring_bytes
from actorserve.shm.segment import Segment


class Note(msgspec.Struct, array_like=True, frozen=True, tag=1):
    number: int
    text: str = ""


class Blob(msgspec.Struct, array_like=True, frozen=True, tag=2):
    data: bytes


class Post:
    """One mailbox with lanes "a" and "b"."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.segment = Segment.create(mailbox_bytes() + 2 * ring_bytes(capacity), "test")
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.boxes: list[Inbox] = []

    def offset(self, lane: str) -> int:
        return mailbox_bytes() + "ab".index(lane) * ring_bytes(self.capacity)

    def outbox(self, lane: str = "a") -> Outbox:
        return Outbox(Producer(self.segment, self.offset(lane), self.capacity), 0, self.eventfd)

    def inbox(self) -> Inbox:
        lanes = {lane: Consumer(self.segment, self.offset(lane), self.capacity) for lane in "ab"}
        return Inbox(self.segment, 0, lanes, self.eventfd, Note | Blob)

    def wakeups(self) -> int:
        """Eventfd writes since the last look."""
        try:
            return os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        os.close(self.eventfd)
        self.segment.close()


def drained(inbox: Inbox) -> list[Any]:
    """All that is there, over as many turns as it takes, and committed."""
    messages: list[Any] = []
    while inbox.drain(messages.append):
        inbox.commit()
    return messages


def depths(inbox: Inbox) -> list[int]:
    """Bytes of the lanes, in their order, that were not received."""
    return [consumer.depth for consumer in inbox._numbers]
