"""The methods of the gRPC service, before an engine that tests play."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from actorserve.actors.accounts.account import Account
from actorserve.actors.frontend.grpc_api.requests import fields_of, prepared
from actorserve.actors.frontend.grpc_api.schema import message_class
from actorserve.actors.frontend.grpc_api.service import InferenceService
from actorserve.actors.protocol.messages import Finish
from actorserve.http.accounts import Accounts
from actorserve.http.errors import ApiError
from tests.http.fakes import FakeEngine, finish_all, rendered, say
from tests.http.serving import SETTINGS

WAIT_S = 30.0  # what a call that is in order never needs


class OneModel(FakeEngine):
    """It is asked for no other."""

    def of_model(self, model: int) -> FakeEngine:
        return self


class OneAccount(Accounts):
    """Every key is its."""

    enabled = True

    def find(self, key: bytes) -> Account | None:
        return Account(0, "one", b"", concurrent=1)


class Queued(OneModel):
    """An account's turn comes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for, self.comes = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def turn(self, account: Account) -> AsyncIterator[None]:
        self.asked_for.set()
        await self.comes.wait()
        yield


class Context:
    """What a call tells of itself."""

    def __init__(self, key: str = "") -> None:
        self._key = key

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-api-key", self._key),)


async def collected(stream: Any) -> list[Any]:
    return [message async for message in stream]


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.REJECTED, Finish.GRAMMAR])
@pytest.mark.parametrize("text", ["", "so far"])
async def test_a_stream_ends_when_its_job_fails(finish: Finish, text: str) -> None:
    """Also where the Delta that says so says that there is something new of a choice."""
    engine = OneModel()
    service = InferenceService(engine, SETTINGS)
    stream = service.generate_stream(message_class("GenerateRequest")(text="hi"), Context())
    told = asyncio.ensure_future(collected(stream))
    job = await engine.jobs.get()
    rendered(job)
    await asyncio.sleep(0)  # until it is listened to
    say(job, 0, text, 1, finish)
    with pytest.raises(ApiError):
        await asyncio.wait_for(told, WAIT_S)


async def test_a_stream_that_ends_well() -> None:
    engine = OneModel()
    counted = list[int]()
    service = InferenceService(engine, SETTINGS, counted.append)
    stream = service.generate_stream(message_class("GenerateRequest")(text="hi", n=2), Context())
    told = asyncio.ensure_future(collected(stream))
    finish_all(await engine.jobs.get())
    *parts, last = await asyncio.wait_for(told, WAIT_S)
    assert {choice.text for part in parts for choice in part.choices} == {"yes0", "yes1"}
    assert last.usage.completion_tokens == 6
    assert counted == [1, -1], "a restart of its frontend waits for it meanwhile"


async def test_a_call_that_waits_for_its_turn_is_counted() -> None:
    counted, engine = list[int](), Queued()
    service = InferenceService(engine, replace(SETTINGS, accounts=OneAccount()), counted.append)
    told = asyncio.ensure_future(service.generate(message_class("GenerateRequest")(text="hi"), Context("own")))
    await asyncio.wait_for(engine.asked_for.wait(), WAIT_S)
    assert counted == [1] and engine.jobs.empty()
    engine.comes.set()
    finish_all(await engine.jobs.get())
    await asyncio.wait_for(told, WAIT_S)
    assert counted == [1, -1]


async def test_a_call_that_is_refused_is_counted_no_more() -> None:
    counted, engine = list[int](), OneModel()
    engine.refusal = ApiError(429, "too many")
    service = InferenceService(engine, SETTINGS, counted.append)
    with pytest.raises(ApiError, match="too many"):
        await service.generate(message_class("GenerateRequest")(text="hi"), Context())
    assert counted == [1, -1]


async def test_nobody_aborts_what_another_key_asked_for() -> None:
    """Whatever it calls it."""
    service = InferenceService(engine := OneModel(), replace(SETTINGS, api_keys=["own", "other"]))
    asked = message_class("GenerateRequest")(text="hi", request_id="one")
    runs = asyncio.ensure_future(service.generate(asked, Context("own")))
    await engine.jobs.get()
    abort = message_class("AbortRequest")(request_ids=["one", "two"])
    assert not (await service.abort(abort, Context("other"))).request_ids
    await asyncio.sleep(0)
    assert not runs.done()
    assert list((await service.abort(abort, Context("own"))).request_ids) == ["one"]
    with pytest.raises(ApiError, match="aborted"):
        await asyncio.wait_for(runs, WAIT_S)


@pytest.mark.parametrize("field", ["messages_json", "fields_json"])
def test_json_that_is_nested_too_deeply_is_refused(field: str) -> None:
    """As over HTTP: whatever walks through it, here or in another actor, might fall."""
    text = "[" * 200 + "]" * 200
    given = {"text": "hi"} if field == "fields_json" else {}
    request = message_class("GenerateRequest")(**given, **{field: text})
    with pytest.raises(ApiError, match=f"{field} is nested too deeply"):
        fields_of(request)


@pytest.mark.parametrize("given", [{"text": "hi"}, {"messages_json": '[{"role": "user", "content": "hi"}]'}])
def test_a_field_that_is_not_supported_is_refused(given: dict[str, str]) -> None:
    """Of chats, too, though it is none that they have."""
    request = message_class("GenerateRequest")(**given, fields_json='{"stop_regex": "x"}')
    with pytest.raises(ApiError, match="stop_regex is not supported") as refused:
        prepared(request, SETTINGS, "id", "")
    assert refused.value.param == "stop_regex"
