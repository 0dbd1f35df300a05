"""A lane as it is seen from outside: what waits in it, for how long, and that looking never changes it."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.shm.layout import LOW32
from actorserve.shm.rings import mailbox, ring
from actorserve.shm.rings.lane_view import EMPTY, TRIES, LaneView, view_lane
from actorserve.shm.rings.ring import READ
from actorserve.shm.segment import Segment

from ..aborting import every_abort
from ..post import Blob, Note, Post, depths
from ..processes import Child

NOTE_BYTES = 24  # of a record with one Note(number < 128, ""): its header, and 15 bytes in whole words


class Clock:
    """Stamps that are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10**12
        monkeypatch.setattr(mailbox, "monotonic_ns", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def view(post: Post, lane: str = "a") -> LaneView | None:
    return view_lane(post.segment, post.offset(lane), post.capacity)


def seen(post: Post, lane: str = "a") -> LaneView:
    found = view(post, lane)
    assert found is not None
    return found


def send(outbox: mailbox.Outbox, *messages: Any) -> None:
    for message in messages:
        outbox.post(message)
    assert outbox.flush()


def test_a_lane_without_a_producer_is_empty(post: Post) -> None:
    assert view(post) == EMPTY


def test_what_waits_is_counted_until_it_is_committed(post: Post, clock: Clock) -> None:
    outbox, inbox = post.outbox(), post.inbox()
    first = clock.now
    send(outbox, Note(1))
    clock.now += 5
    send(outbox, Note(2))
    assert seen(post) == LaneView(2 * NOTE_BYTES, 2, 2 * NOTE_BYTES, 2, first)
    inbox.drain(lambda message: None, one_record=True)
    assert seen(post).waiting_records == 2, "it is being handled"
    inbox.commit()
    assert seen(post) == LaneView(2 * NOTE_BYTES, 2, NOTE_BYTES, 1, first + 5)
    inbox.drain(lambda message: None)
    inbox.commit()
    assert seen(post) == LaneView(2 * NOTE_BYTES, 2, 0, 0, None)
    assert view(post, "b") == EMPTY


def test_all_the_way_round_the_ring(clock: Clock) -> None:
    """Records of a size that does not divide the ring's, so that some stand behind a sign to the start."""
    post = Post(1024)
    outbox, inbox = post.outbox(), post.inbox()
    stamps, wrapped = [], 0
    for number in range(200):
        clock.now += 1
        stamps.append(clock.now)
        send(outbox, Blob(bytes(100 + number % 50)))
        found = seen(post)
        assert (found.sent_records, found.waiting_records, found.oldest_ns) == (number + 1, len(stamps), stamps[0])
        assert found.waiting_bytes == depths(inbox)[0]
        at = (post.offset("a") + ring.header_bytes() + post.segment.words[post.offset("a") // 8 + READ] % 1024) // 8
        wrapped += post.segment.words[at] & LOW32 == ring.WRAP
        if len(stamps) == 3:
            inbox.drain(lambda message: None, one_record=True)
            inbox.commit()
            stamps.pop(0)
    assert wrapped
    post.close()


def test_a_producer_that_died_at_any_line_is_seen_as_its_successor_sees_it(clock: Clock) -> None:
    counts = set()

    def act(scene: Post) -> Any:
        outbox = scene.outbox()
        send(outbox, Note(1))
        outbox.post(Note(2))
        return outbox.flush

    for scene, _ in every_abort(lambda: Post(1024), act, (mailbox, ring)):
        found = seen(scene)
        assert found.waiting_records == found.sent_records in (1, 2)
        assert found.waiting_bytes == found.waiting_records * NOTE_BYTES and found.oldest_ns == clock.now
        assert scene.outbox()._producer.sequence == found.sent_records
        counts.add(found.sent_records)
        scene.close()
    assert counts == {1, 2}


def test_a_lane_in_motion_is_seen_true_or_not_at_all() -> None:
    """Records of one size that fills the ring evenly: in every view the bytes tell the records."""
    post = Post(NOTE_BYTES * 64)
    begun = time.monotonic_ns()

    def play() -> None:
        outbox, inbox = post.outbox(), post.inbox()
        for number in range(150_000):
            outbox.post(Note(number % 100))
            outbox.flush()
            if number % 3 == 0:
                inbox.drain(lambda message: None, one_record=number % 2 == 0)
                inbox.commit()

    child = Child(play)
    views, before = 0, 0
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        found = view(post)
        if found is None:
            continue
        assert found.waiting_bytes == found.waiting_records * NOTE_BYTES
        assert found.sent_bytes == found.sent_records * NOTE_BYTES >= before
        if found.oldest_ns is not None:
            assert begun <= found.oldest_ns <= time.monotonic_ns()
        assert (found.oldest_ns is None) == (found.waiting_records == 0)
        views, before = views + 1, found.sent_bytes
    assert child.wait() == 0
    assert views > 100
    post.close()


def test_who_moves_all_the_time_is_not_waited_for(post: Post) -> None:
    send(post.outbox(), Note(1))
    looks = 0

    class Moving:
        """The segment's words, with a consumer that commits after every look."""

        def __getitem__(self, index: int) -> int:
            nonlocal looks
            if index == post.offset("a") // 8 + READ:
                looks += 1
                return looks * 8
            return post.segment.words[index]

    moving: Any = SimpleNamespace(words=Moving(), map=post.segment.map, size=post.segment.size)
    assert view_lane(moving, post.offset("a"), post.capacity) is None
    assert TRIES <= looks <= 2 * TRIES


def test_what_is_no_ring_is_not_read(post: Post) -> None:
    post.segment.words[post.offset("a") // 8] = 7
    assert view(post) is None
    with pytest.raises(ValueError, match="no ring"):
        view_lane(post.segment, post.segment.size - 64, post.capacity)


def test_a_record_that_no_outbox_made_has_no_age(post: Post) -> None:
    outbox = post.outbox()
    outbox._producer.try_send(b"")
    outbox._producer.try_send(b"\x92\x01\x90")
    assert (seen(post).waiting_records, seen(post).oldest_ns) == (2, None)


@pytest.mark.parametrize(
    ("head", "stamp"),
    [
        (b"\x92\xcf" + (1 << 40).to_bytes(8, "big"), 1 << 40),
        (b"\x92\xce" + (1 << 31).to_bytes(4, "big"), 1 << 31),
        (b"\x92\xcf" + bytes(7), None),
        (b"\x91\xcf" + bytes(8), None),
        (b"\x92", None),
        (b"\x92\x07", None),
    ],
)
def test_the_stamp_of_a_record(head: bytes, stamp: int | None) -> None:
    assert mailbox.stamp_of(head) == stamp


def test_an_observer_cannot_write(post: Post) -> None:
    send(post.outbox(), Note(1))
    observed = Segment.observe(f"/proc/self/fd/{post.segment.fd}")
    assert view_lane(observed, post.offset("a"), post.capacity) == view(post)
    with pytest.raises(TypeError):
        observed.words[0] = 1
    with pytest.raises(TypeError):
        observed.map[0:1] = b"x"
    observed.close()


def test_what_cannot_be_observed_leaves_no_descriptor_open() -> None:
    empty = os.memfd_create("empty")
    before = {*os.listdir("/proc/self/fd")}
    with pytest.raises(ValueError, match="empty"):
        Segment.observe(f"/proc/self/fd/{empty}")
    assert {*os.listdir("/proc/self/fd")} <= before, "the collector may close some of other tests"
    os.close(empty)
