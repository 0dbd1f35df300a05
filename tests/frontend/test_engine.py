"""The frontend's engine on real rings: a test plays renderer, scheduler and detokenizer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actorserve.actors.frontend import rpc
from actorserve.actors.frontend.engine import FrontendEngine
from actorserve.actors.frontend.requests import jobs
from actorserve.actors.protocol.file_sizes import RECENT_BYTES
from actorserve.actors.protocol.messages import Delta, Failed, Finish, Render, Rendered
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.administration import PrefixCacheReset, ResetPrefixCache
from actorserve.actors.protocol.topics.calls import Detokenize, Detokenized, Tokenize, Tokenized
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.idempotency_keys import Key
from actorserve.http.generation.job import Job
from actorserve.http.generation.times import PromptProgress
from actorserve.shm.journals.keyed_log import KEY_BYTES
from actorserve.shm.kv_map.map import KVMap

from .others import PARAMS, Others, end, job, text_of

# --- one request -----------------------------------------------------------------------------------------------------


async def test_the_first_call_of_all_may_fail(others: Others) -> None:
    asked = asyncio.ensure_future(others.engine.detokenize([1 << 30]))
    await asyncio.sleep(0)
    (message,) = others.received("renderer-0")
    others.tell("renderer-0", Failed([], 400, "out of vocabulary", "tokens", message.call))
    with pytest.raises(ApiError, match="out of vocabulary"):
        await asked


async def test_what_has_lost_its_history_begins_nothing(others: Others) -> None:
    first, free = others.begun(Key(b"1" * KEY_BYTES, b"digest", 0)), others.engine.slots.free
    lost = job()
    lost.lost = ApiError(400, "gone", "previous_response_id")
    with pytest.raises(ApiError, match="gone"):
        others.engine.submit(lost)
    assert others.engine.slots.free == free
    others.engine.submit(lost, first.refs)
    assert lost.refs == first.refs


async def test_a_request_from_render_to_its_end(others: Others) -> None:
    asked = job(choices=2)
    free = others.engine.slots.free
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    assert isinstance(render, Render) and len(render.refs) == 2 and render.prompt == TextPrompt("Hello")
    assert others.engine.in_flight() == 1 and others.engine.slots.free == free - 2
    others.put_prompt(render.refs)
    others.tell("renderer-0", Rendered(render.refs, 3))
    first, second = render.refs
    others.tell("detokenizer-0", Delta(first, 0, "Hel", 1), Delta(first, 3, "lo", 2))
    assert asked.started.done() and not asked.done.done()
    others.tell("detokenizer-0", end(first, ""), end(second, "Bye", Finish.LENGTH))
    await asked.done
    assert [text_of(asked, index) for index in range(2)] == ["Hello", "Bye"]
    assert [choice.finish_reason for choice in asked.choices] == ["stop", "length"]
    assert asked.prompt_tokens == 3
    others.engine.release(asked)
    assert others.engine.slots.free == free and not others.engine.in_flight()
    assert not others.received("scheduler")


async def test_how_far_prompts_have_come(others: Others) -> None:
    system = others.context.system
    kv_map = KVMap(others.context.segment.map, system.kv_map_offsets[0], *system.kv_map_sizes)
    asked = job(choices=2)
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    assert others.engine.progress(asked) == [], "nobody knows how long they are"
    others.put_prompt(render.refs)
    others.tell("renderer-0", Rendered(render.refs, 3))
    first, second = render.refs
    kv_map.hold(first, [0], 2)
    kv_map.hold((1 << 32) + second, [1], 3)
    others.context.table.set_cached(first, 1)
    assert others.engine.progress(asked) == [PromptProgress(0, 3, 1, 2), PromptProgress(1, 3, 0, 0)]


async def test_a_refusal_reaches_the_request_and_frees_its_slots(others: Others) -> None:
    asked, free = job(), others.engine.slots.free
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    others.tell("renderer-0", Failed(render.refs, 400, "too long", "messages"))
    with pytest.raises(ApiError) as caught:
        await asked.done
    assert (caught.value.status, caught.value.param) == (400, "messages")
    others.engine.release(asked)
    assert others.engine.slots.free == free


@pytest.mark.parametrize(("finish", "status"), [(Finish.REJECTED, 503), (Finish.ERROR, 500), (Finish.GRAMMAR, 500)])
async def test_an_engine_that_cannot_says_so(others: Others, finish: Finish, status: int) -> None:
    asked = job()
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    others.put_prompt(render.refs)
    others.tell("renderer-0", Rendered(render.refs, 3))
    others.tell("detokenizer-0", end(render.refs[0], "", finish))
    with pytest.raises(ApiError) as caught:
        await asked.done
    assert caught.value.status == status and (caught.value.retry_after is not None) == (status == 503)


async def test_no_room_is_said_at_once_and_opens_nothing(others: Others) -> None:
    free = others.engine.slots.free
    others.engine.submit(job(choices=free - 1))
    with pytest.raises(ApiError) as caught:
        others.engine.submit(job(choices=2))
    assert caught.value.status == 503 and others.engine.slots.free == 1
    with pytest.raises(ApiError) as caught:
        others.engine.submit(job(choices=free + 1))
    assert caught.value.status == 400


async def test_parameters_that_are_too_long_open_nothing(others: Others) -> None:
    free, room = others.engine.slots.free, others.table.params_bytes
    long = msgspec.msgpack.encode(Generation(Sampling(1), stop=["a" * room]))
    with pytest.raises(ApiError) as caught:
        others.engine.submit(Job([TextPrompt("Hello")] * 2, [PARAMS, long]))
    assert caught.value.status == 400
    with pytest.raises(ValueError, match="of parameters"):
        others.engine.slots.open(long, 0, job(), 0, "renderer-0")
    assert others.engine.slots.free == free and not others.engine.slots.orphans() and not others.received("renderer-0")


async def test_prompts_without_a_seed_have_seeds_of_their_own(others: Others) -> None:
    asked = job(prompts=3)
    asked.seeds_differ = True
    others.engine.submit(asked)
    written = [msgspec.msgpack.decode(others.table.params(ref), type=Generation) for ref in asked.refs]
    assert [one.sampling.seed for one in written] == [1, 2, 3]


def test_what_is_kept_outlives_any_number_of_conversations(others: Others) -> None:
    """These are written anew with each change."""
    engine = others.engine
    assert engine.put(b"k" * KEY_BYTES, b"kept")
    for number in range(2 * RECENT_BYTES >> 20):
        assert engine.conversations.put(bytes([number]) * KEY_BYTES, bytes(1 << 20))
    assert engine.get(b"k" * KEY_BYTES) == b"kept" and engine.kept_payloads() == [b"kept"]
    assert engine.conversations.get(bytes(KEY_BYTES)) is None and engine.get(bytes([number]) * KEY_BYTES) is None
    assert engine.conversations.get(bytes([number]) * KEY_BYTES) == bytes(1 << 20)


async def test_others_read_conversations_where_they_are_kept() -> None:
    others = Others(frontends=2)
    second = FrontendEngine(others.born("frontend-1"))
    key, text = b"k" * KEY_BYTES, b"said".ljust(1000)
    others.engine.conversations.put(key, text)
    others.engine.put(key, text[::-1])
    assert second.conversations.get(key, 0) == text and second.get(key, 0) == text[::-1]
    assert second.conversations.get(key) is None and second.get(key) is None
    others.memory.close()


async def test_prompts_go_where_least_is_to_be_done() -> None:
    others = Others(renderers=2)
    others.engine.submit(job(prompts=4))
    counts = [len(others.received(name)) for name in ("renderer-0", "renderer-1")]
    assert counts == [2, 2]
    others.memory.close()


async def test_a_renderer_that_does_not_answer_is_not_waited_for(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RENDER_S", 0.0)
    asked = job()
    others.engine.submit(asked)
    with pytest.raises(ApiError) as caught:
        await asked.started
    assert caught.value.status == 503


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_calls_are_answered_and_refused(others: Others) -> None:
    task = asyncio.create_task(others.engine.tokenize(TextPrompt("Hello"), True))
    other = asyncio.create_task(others.engine.detokenize([1]))
    third = asyncio.create_task(others.engine.detokenize([9]))
    await asyncio.sleep(0)
    asked = others.received("renderer-0")
    assert [type(message) for message in asked] == [Tokenize, Detokenize, Detokenize]
    assert len({message.call for message in asked}) == 3
    others.tell("renderer-0", Detokenized(asked[1].call, "a"), Tokenized(asked[0].call, [5], ["x"]))
    others.tell("renderer-0", Failed([], 400, "no such token", "tokens", asked[2].call))
    assert await task == ([5], ["x"]) and await other == "a"
    with pytest.raises(ApiError, match="no such token"):
        await third
    others.tell("renderer-0", Detokenized(asked[1].call, "again"), Failed([], 400, "again", None, asked[2].call))


async def test_a_call_has_a_deadline(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "CALL_S", 0.0)
    with pytest.raises(ApiError) as caught:
        await others.engine.detokenize([1])
    assert caught.value.status == 503


async def test_the_scheduler_is_asked_to_reset_the_prefix_cache(others: Others) -> None:
    tasks = [asyncio.create_task(others.engine.reset_prefix_cache(again)) for again in (False, True)]
    for _ in range(2):  # each engine is asked by a task of its own
        await asyncio.sleep(0)
    first, second = others.received("scheduler")
    assert (first, second) == (ResetPrefixCache(first.call), ResetPrefixCache(second.call, True))
    assert first.call != second.call and not others.received("renderer-0")
    others.tell("scheduler", PrefixCacheReset(second.call))
    await tasks[1]
    assert not tasks[0].done()
    others.tell("scheduler", PrefixCacheReset(first.call), PrefixCacheReset(first.call))
    await tasks[0]


async def test_an_answer_to_a_predecessor_is_none_to_its_successor(others: Others) -> None:
    """Both have asked for the same, and the first answer says nothing of what was asked later."""
    old = asyncio.create_task(others.engine.reset_prefix_cache(False))
    for _ in range(2):  # each engine is asked by a task of its own
        await asyncio.sleep(0)
    (asked,) = others.received("scheduler")
    old.cancel()
    others.memory.raise_incarnation(others.context.spec)
    others.restart()
    new = asyncio.create_task(others.engine.reset_prefix_cache(False))
    for _ in range(2):  # each engine is asked by a task of its own
        await asyncio.sleep(0)
    (again,) = others.received("scheduler")
    others.tell("scheduler", PrefixCacheReset(asked.call))
    assert again.call != asked.call and not new.done()
    others.tell("scheduler", PrefixCacheReset(again.call))
    await new


async def test_a_scheduler_that_does_not_come_back_is_not_waited_for(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "CALL_S", 0.0)
    with pytest.raises(ApiError, match="has not answered") as caught:
        await others.engine.reset_prefix_cache(False)
    assert caught.value.status == 503
