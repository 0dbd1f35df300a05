"""A sender or a receiver of messages dies before any one bytecode of mailbox and ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorserve.shm.rings import mailbox, ring
from actorserve.shm.rings.mailbox import Inbox, Outbox

from ..aborting import every_abort, every_state
from ..post import Note, Post, drained

MODULES = (mailbox, ring)
FIRST, SECOND = [Note(1, "a"), Note(2, "b")], [Note(3, "c" * 50), Note(4, "d")]


class Scene(Post):
    """A mailbox in which FIRST waits; its owner sleeps."""

    def __init__(self) -> None:
        super().__init__(1024)
        self.got: list[Any] = []
        self.outbox_alive: Outbox | None = None
        self.inbox_alive: Inbox | None = None
        inbox = self.inbox()
        assert inbox.arm()
        inbox.close()
        self.send(FIRST)

    def survives(self) -> tuple[bytes, int]:
        """All that the death of a box that nobody has any more leaves: the lanes, and what the test was given."""
        return bytes(self.segment.map), len(self.got)

    def send(self, messages: list[Note]) -> None:
        outbox = self.outbox()
        for message in messages:
            outbox.post(message)
        assert outbox.flush()
        outbox._producer.close()

    def take(self) -> list[Any]:
        inbox = self.inbox()
        messages = drained(inbox)
        inbox.close()
        return messages


def flushing(scene: Scene) -> Callable[[], object]:
    outbox = scene.outbox()

    def flush() -> None:
        for message in SECOND:
            outbox.post(message)
        outbox.flush()

    return flush


def draining(scene: Scene) -> Callable[[], object]:
    inbox = scene.inbox()

    def turn() -> None:
        inbox.drain(scene.got.append)
        inbox.commit()

    return turn


def test_while_flushing() -> None:
    outcomes = set()
    for scene, was_aborted in every_state(Scene, flushing, MODULES, Scene.survives, 2):
        scene.send(FIRST)
        taken = scene.take()
        assert taken in (FIRST + FIRST, FIRST + SECOND + FIRST), "a record is a whole batch or nothing"
        assert was_aborted or len(taken) == 6
        outcomes.add(len(taken))
        scene.close()
    assert outcomes == {4, 6}


def test_while_draining() -> None:
    outcomes = set()
    for scene, was_aborted in every_state(Scene, draining, MODULES, Scene.survives, 2):
        assert scene.got == FIRST[: len(scene.got)]
        scene.send(SECOND)
        taken = scene.take()
        assert taken in (FIRST + SECOND, SECOND)
        assert taken[0] == FIRST[0] or scene.got == FIRST, "committed before it was handled"
        outcomes.add((was_aborted, len(taken)))
        scene.close()
    assert (True, 4) in outcomes and (False, 2) in outcomes


def test_while_attaching() -> None:
    for act in (lambda scene: scene.inbox, lambda scene: scene.outbox):
        for scene, _ in every_state(Scene, act, MODULES, Scene.survives, 0):
            scene.send(SECOND)
            assert scene.take() == FIRST + SECOND
            scene.close()


def test_boxes_that_live_on_send_and_handle_at_least_once() -> None:
    def flushing_alive(scene: Scene) -> Callable[[], object]:
        scene.outbox_alive = outbox = scene.outbox()
        for message in SECOND:
            outbox.post(message)
        return outbox.flush

    def draining_alive(scene: Scene) -> Callable[[], object]:
        scene.inbox_alive = inbox = scene.inbox()
        return lambda: inbox.drain(scene.got.append)

    for scene, _ in every_abort(Scene, flushing_alive, MODULES, 100):
        assert scene.outbox_alive
        scene.outbox_alive.flush()
        assert scene.take() in (FIRST + SECOND, FIRST + SECOND + SECOND)
        scene.close()
    for scene, was_aborted in every_abort(Scene, draining_alive, MODULES, 100):
        assert scene.inbox_alive
        if was_aborted:
            scene.inbox_alive.rewind()
            assert drained(scene.inbox_alive) == FIRST
        scene.close()


def test_while_sleeping_and_waking_nothing_is_overlooked() -> None:
    """The receiver dies in arm or disarm; its successor's sleeps are seen by a sender that has seen the old ones."""

    def dozing(scene: Scene) -> Callable[[], object]:
        scene.outbox_alive = scene.outbox()
        inbox = scene.inbox()
        drained(inbox)

        def doze() -> None:
            inbox.arm()
            assert scene.outbox_alive
            scene.outbox_alive.post(FIRST[0])
            scene.outbox_alive.flush()
            inbox.disarm()
            drained(inbox)
            inbox.arm()

        return doze

    for scene, _ in every_abort(Scene, dozing, MODULES, 200):
        successor = scene.inbox()
        drained(successor)
        assert successor.arm()
        scene.wakeups()
        assert scene.outbox_alive
        scene.outbox_alive.post(SECOND[0])
        scene.outbox_alive.flush()
        assert scene.wakeups() >= 1 and SECOND[0] in drained(successor)
        scene.close()
