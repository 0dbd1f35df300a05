"""Answers that are kept by their keys: which slots stay, for how long, and what a successor makes of them."""

from __future__ import annotations

import time

import msgspec
import pytest

from actorserve.actors.protocol.messages import (
    Cancel,
    Delta,
    Finish,
    PromptTokenLogprobs,
    Render,
    Resend,
    Resent,
    TokenLogprobs,
)
from actorserve.http.generation.idempotency_keys import Kept, Key
from actorserve.http.generation.job import Job

from .others import Others, end, job, text_of

ONE, TWO = Key(b"1" * 16, b"digest", 0), Key(b"2" * 16, b"digest", 0)


def begin(others: Others, key: Key | None = ONE) -> Job:
    return others.begun(key)


def finish(others: Others, made: Job, code: Finish = Finish.STOP) -> None:
    others.table.set_finish(made.refs[0], code)
    others.tell("detokenizer-0", end(made.refs[0], finish=code))


def again(others: Others) -> Job:
    kept = others.engine.kept(ONE)
    assert kept is not None and (kept.seed, kept.created) == (7, 8)
    reader = job()
    others.engine.submit(reader, kept.refs)
    return reader


async def test_two_readers_of_one_answer(others: Others) -> None:
    first = begin(others)
    others.tell("detokenizer-0", Delta(first.refs[0], 0, "be", 1))
    second = again(others)
    assert [m.refs for m in others.received("detokenizer-0") if isinstance(m, Resend)] == [first.refs]
    others.tell("detokenizer-0", Delta(first.refs[0], 2, "tween", 2))
    assert text_of(second) == ""
    others.tell("detokenizer-0", Resent(first.refs))
    others.tell("detokenizer-0", Delta(first.refs[0], 0, "between", 2), Delta(first.refs[0], 7, "!", 3))
    others.engine.release(first)
    finish(others, first)
    assert [text_of(one) for one in (first, second)] == ["between!", "between!"] and second.done.done()
    assert not [m for m in others.received("scheduler") if isinstance(m, Cancel)]


async def test_a_client_that_leaves_cancels_nothing_that_is_kept(others: Others) -> None:
    for key in (ONE, None):
        made = begin(others, key)
        others.engine.release(made)
        cancelled = [m.refs for m in others.received("scheduler") if isinstance(m, Cancel)]
        assert cancelled == ([] if key else [made.refs])
        assert bool(others.table.is_cancelled(made.refs[0])) == (key is None)


async def test_kept_slots_are_free_when_their_time_is_over(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    free = others.engine.slots.free
    running, ended = begin(others, ONE), begin(others, TWO)
    finish(others, ended)
    others.engine.release(ended)
    others.engine.beat(0)
    assert others.engine.kept(TWO) and others.engine.slots.free == free - 2
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 301)
    others.engine.beat(0)
    assert not others.engine.kept(TWO) and others.engine.kept(ONE) and others.engine.slots.free == free - 1
    finish(others, running)
    monkeypatch.setattr(time, "monotonic", lambda: now + 700)
    others.engine.beat(0)
    monkeypatch.setattr(time, "monotonic", lambda: now + 999)
    others.restart(running.refs)
    running = again(others)
    others.tell("detokenizer-0", Resent(running.refs), end(running.refs[0]))
    others.engine.beat(0)
    assert others.engine.kept(ONE), "its time counts from its end"
    monkeypatch.setattr(time, "monotonic", lambda: now + 1001)
    others.engine.beat(0)
    assert not others.engine.kept(ONE) and others.engine.slots.free == free - 1, "somebody reads it still"
    others.engine.release(running)
    assert others.engine.slots.free == free


async def test_new_requests_take_the_place_of_kept_answers(others: Others) -> None:
    free = others.engine.slots.free
    for number in range(free + 2):
        made = begin(others, Key(number.to_bytes(16, "little"), b"", 0))
        finish(others, made)
        others.engine.release(made)
        others.engine.beat(0)
        assert others.engine.slots.free >= free - free // 4
    others.engine.submit(job(free))
    assert others.engine.slots.free == 0


@pytest.mark.parametrize("dies", [False, True])
async def test_what_has_ended_first_makes_room_first(others: Others, dies: bool) -> None:
    """Not what has begun first: an answer that took long would be gone before anybody could ask for it again."""
    count = others.engine.slots.free // 4 + 2
    long, *short = [begin(others, Key(number.to_bytes(16, "little"), b"", 0)) for number in range(count)]
    for made in (*short, long):
        finish(others, made)
        others.engine.release(made)
        others.engine.beat(0)
        if dies:
            others.restart()
    others.engine.beat(0)
    kept = [number for number in range(count) if others.engine.kept(Key(number.to_bytes(16, "little"), b"", 0))]
    assert kept == [0, *range(3, count)]


@pytest.mark.parametrize("code", [Finish.REJECTED, Finish.ERROR, Finish.GRAMMAR])
async def test_what_has_failed_is_not_given_again(others: Others, code: Finish) -> None:
    made = begin(others)
    finish(others, made, code)
    assert others.engine.kept(ONE) is None
    others.engine.release(made)
    other = begin(others)
    found = others.engine.kept(ONE)
    assert found is not None and found.refs == other.refs


async def test_a_successor_gives_what_its_predecessor_kept(others: Others) -> None:
    made = begin(others)
    finish(others, made)
    running = begin(others, TWO)
    lost = begin(others, None)
    others.restart()
    others.received("renderer-0")
    reader = again(others)
    assert reader.refs == made.refs and others.engine.kept(TWO)
    cancelled = [ref for m in others.received("scheduler") if isinstance(m, Cancel) for ref in m.refs]
    assert cancelled == lost.refs and not others.table.is_cancelled(running.refs[0])
    others.tell("detokenizer-0", Resent(made.refs), end(made.refs[0]))
    assert text_of(reader) == "text" and reader.done.done()


async def test_a_successor_finds_nothing_that_was_forgotten_before_its_end_was_noted(others: Others) -> None:
    free = others.engine.slots.free
    made = begin(others)
    finish(others, made)
    others.engine.abort(made, ONE)
    others.restart()
    assert others.engine.kept(ONE) is None and others.engine.slots.free == free


async def test_an_answer_that_runs_is_kept_whatever_time_a_server_before_gave_it(others: Others) -> None:
    """From its beginning, as records had it once."""
    made = begin(others)
    others.engine.put(ONE.name, msgspec.msgpack.encode(Kept(ONE.digest, made.refs, 7, 8, until=time.monotonic() - 1)))
    others.restart()
    finish(others, again(others))
    others.engine.beat(0)
    assert others.engine.kept(ONE), "its time counts from its end"


async def test_an_answer_that_has_ended_is_kept_no_longer_for_the_time_a_server_before_gave_it(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Unix seconds, as records had it once."""
    made = begin(others)
    others.table.set_finish(made.refs[0], Finish.STOP)
    others.engine.put(ONE.name, msgspec.msgpack.encode(Kept(ONE.digest, made.refs, 7, 8, until=time.time() + 100)))
    others.restart()
    assert others.engine.kept(ONE)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 301)
    others.engine.beat(0)
    assert not others.engine.kept(ONE)


async def test_who_comes_later_is_told_what_stands_before_all_text(others: Others) -> None:
    """The first reader has the prompt's logprobs; what is said to that one next has all of the text, and not them."""
    first = begin(others)
    (ref,) = first.refs
    of_prompt = PromptTokenLogprobs(ref, 1, [TokenLogprobs(b"a", 1, -1.0, 1), TokenLogprobs(b"b", 2, -2.0, 1)])
    others.tell("detokenizer-0", of_prompt)
    second = again(others)
    finish(others, first)
    assert first.done.done() and not second.done.done()
    others.tell("detokenizer-0", Resent([ref]), of_prompt, end(ref))
    assert second.done.done() and sorted(second.choices[0].prompt_logprobs) == [1, 2]


async def test_who_leaves_before_it_is_told_anything_leaves_no_slot(others: Others) -> None:
    free = others.engine.slots.free
    made = begin(others, None)
    others.restart(made.refs)
    reader = job()
    others.engine.submit(reader, made.refs)
    finish(others, made)
    assert others.engine.slots.free == free - 1
    others.engine.release(reader)
    assert others.engine.slots.free == free


async def test_a_request_that_died_while_it_was_rendered_is_begun_again(others: Others) -> None:
    made = job()
    others.engine.submit(made)
    others.engine.keep(ONE, made, 7, 8)
    others.restart()
    assert others.engine.kept(ONE) is None
    assert next(type(m) for m in others.received("renderer-0")) is Render
