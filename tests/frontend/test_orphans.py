"""Slots that a dead frontend has left: which are free at once, and which wait."""

from __future__ import annotations

import pytest

from actorserve.actors.frontend.requests.orphans import MOST_BEATS, QUIET_BEATS
from actorserve.actors.protocol.messages import Failed, Finish
from actorserve.actors.protocol.topics.calls import Sync, Synced
from actorserve.http.generation.idempotency_keys import Key
from actorserve.shm.table.table import slot_of

from .others import Others, end, job

KEY = Key(b"1" * 16, b"digest", 0)


async def test_a_successor_frees_what_was_left(others: Others) -> None:
    """What has ended is free at once; the rest when nobody can touch it any more: what was never rendered, what runs,
    and what has ended while its last text is on its way.
    """
    free = others.engine.slots.free
    for _ in range(6):
        others.engine.submit(job())
    never, runs, ended, stopped, telling, refused = [message.refs[0] for message in others.received("renderer-0")]
    others.put_prompt([runs, ended, stopped, telling])
    for ref in (ended, stopped, telling):
        others.table.append(ref, [1, 2])
        others.table.set_finish(ref, Finish.STOP)
    others.table.set_text(ended, 2)
    others.table.set_stop(stopped, 1)
    others.tell("renderer-0", Failed([refused], 400, "no"))
    others.restart()
    assert others.engine.slots.free == free - 3
    assert all(others.is_end_told(ref) for ref in (ended, stopped)), "nobody waits for them"
    assert not any(others.is_end_told(ref) for ref in (never, runs, telling))
    (sync,) = others.received("renderer-0")
    (cancel,) = others.received("scheduler")
    assert isinstance(sync, Sync) and set(cancel.refs) == {never, runs}
    assert all(others.table.is_cancelled(ref) for ref in (never, runs))
    others.tell("renderer-0", Synced(sync.call))
    assert others.engine.slots.free == free - 1 and others.is_end_told(telling)
    others.tell("detokenizer-0", end(runs, "", Finish.ABORT))
    assert others.engine.slots.free == free


async def test_the_end_of_an_earlier_use_frees_nothing(others: Others) -> None:
    """All words of the slot speak of its last use: of this one nothing has come yet."""
    others.engine.submit(job())
    (render,) = others.received("renderer-0")
    others.tell("renderer-0", Failed(render.refs, 400, "no"))
    while others.engine.slots.free:
        others.engine.submit(job())
    assert any(slot_of(ref) == slot_of(render.refs[0]) for m in others.received("renderer-0") for ref in m.refs)
    others.restart()
    assert others.engine.slots.free == 0


@pytest.mark.parametrize("comes", [0, 30, MOST_BEATS])
async def test_a_stream_is_kept_while_its_connection_may_come(others: Others, comes: int) -> None:
    """By beats of the process, however much time they take; and not for ever, where something always comes."""
    others.engine.submit(job())
    (render,) = others.received("renderer-0")
    others.put_prompt(render.refs)
    others.restart(render.refs)
    for _ in range(comes):
        others.engine.beat(0, adopting=True)
    for _ in range(min(QUIET_BEATS, MOST_BEATS - comes)):
        others.engine.beat(0)
    assert not others.received("scheduler") and not others.table.is_cancelled(render.refs[0])
    others.engine.beat(0, adopting=comes == MOST_BEATS)
    (cancel,) = others.received("scheduler")
    assert cancel.refs == render.refs and others.table.is_cancelled(render.refs[0])


async def test_a_stream_whose_connection_is_over_is_given_up_at_once(others: Others) -> None:
    """The others wait for theirs, and what can be asked for again goes on."""
    others.engine.submit(job())
    others.engine.submit(job())
    gone, waits = (render.refs[0] for render in others.received("renderer-0"))
    others.put_prompt([gone, waits])
    (kept,) = others.begun(KEY).refs
    others.restart([gone, waits, kept])
    others.engine.nobody_goes_on([gone, kept])
    (cancel,) = others.received("scheduler")
    assert cancel.refs == [gone] and others.table.is_cancelled(gone)
    assert not others.table.is_cancelled(waits) and not others.table.is_cancelled(kept)
    others.engine.nobody_goes_on([gone])
    assert not others.received("scheduler")


async def test_one_who_has_gone_on_is_not_given_up_with_a_connection(others: Others) -> None:
    made = others.begun()
    others.restart(made.refs)
    again = job()
    others.engine.submit(again, made.refs)
    others.received("scheduler")
    others.engine.nobody_goes_on(made.refs)
    assert not others.received("scheduler") and not others.table.is_cancelled(made.refs[0])


async def test_nobody_is_told_the_end_of_an_answer_that_is_kept(others: Others) -> None:
    """Once its connection comes no more; it can be asked for again all the same."""
    made = others.begun(KEY)
    others.table.append(made.refs[0], [1, 2])
    others.table.set_finish(made.refs[0], Finish.STOP)
    others.table.set_text(made.refs[0], 2)
    others.restart(made.refs)
    for _ in range(QUIET_BEATS):
        others.engine.beat(0)
    assert not others.is_end_told(made.refs[0])
    others.engine.beat(0)
    assert others.is_end_told(made.refs[0]) and others.engine.kept(KEY) is not None
    others.restart()
    assert others.is_end_told(made.refs[0]) and others.engine.kept(KEY) is not None


async def test_nor_where_there_was_no_connection(others: Others) -> None:
    made = others.begun(KEY)
    others.table.append(made.refs[0], [1, 2])
    others.table.set_finish(made.refs[0], Finish.STOP)
    others.restart()
    assert not others.is_end_told(made.refs[0]), "its last text is on its way"
    others.table.set_text(made.refs[0], 2)
    others.restart()
    assert others.is_end_told(made.refs[0]) and others.engine.kept(KEY) is not None
