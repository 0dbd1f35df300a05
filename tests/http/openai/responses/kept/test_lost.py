"""Responses that are asked again, or gone on with, when what they go on from is gone: what was begun is told, and
nothing is generated without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from actorserve.http.app import make_app
from tests.http.fakes import finish_all, rendered, say
from tests.http.openai.responses.test_runs import TOOL, Noted
from tests.http.serving import SETTINGS, Answer, Served, serving

PATH = "/v1/responses"
GONE = (400, "previous_response_not_found")


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(tools=Noted(), tool_parser="hermes") as running:
        yield running


async def asked(served: Served, key: str, **body: Any) -> Answer:
    """A new one."""
    client = await served.client()
    client.send("POST", PATH, {"input": "hi", **body}, Idempotency_Key=key)
    finish_all(await served.job())
    return await client.answer()


def forget(served: Served, name: str) -> None:
    """The response of this id."""
    del served.engine.payloads[next(key for key, data in served.engine.payloads.items() if name.encode() in data)]


def refusal(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.error["code"]


async def test_a_run_that_was_left_is_not_gone_on_with(served: Served) -> None:
    first = (await asked(served, "first")).json["id"]
    body = {"input": "hi", "previous_response_id": first, "tools": [TOOL]}
    client = await served.client()
    client.send("POST", PATH, body, Idempotency_Key="key")
    rendered(job := await served.job())
    say(job, 0, "ye")
    client.leave()
    while await served.release() is not job:
        pass
    forget(served, first)
    assert refusal(await served.ask("POST", PATH, body, Idempotency_Key="key")) == GONE
    assert served.engine.jobs.empty(), "its history is not in this prompt"


async def test_one_that_has_ended_is_told_again(served: Served) -> None:
    first = (await asked(served, "first")).json["id"]
    body = {"input": "hi", "previous_response_id": first, "tools": [TOOL]}
    told = (await asked(served, "key", **body)).json
    forget(served, first)
    assert (await served.ask("POST", PATH, body, Idempotency_Key="key")).json["output"] == told["output"]
    assert refusal(await served.ask("POST", PATH, body | {"user": "u"}, Idempotency_Key="key")) == GONE, "another one"


@pytest.mark.parametrize("approve", [True, False])
async def test_what_approves_calls_says_what_is_gone(served: Served, approve: bool) -> None:
    """What denies them is told again."""
    given = {"type": "mcp_approval_request", "name": "say", "arguments": "{}", "server_label": "noted"}
    first = (await asked(served, "first", input=[{"role": "user", "content": "hi"}, given | {"id": "a"}])).json["id"]
    approval = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": approve}
    body = {"input": [approval], "previous_response_id": first, "tools": [TOOL]}
    told = await asked(served, "key", **body)
    assert told.status == 200
    forget(served, first)
    again = await served.ask("POST", PATH, body, Idempotency_Key="key")
    assert refusal(again) == GONE if approve else (again.status, again.json["output"]) == (200, told.json["output"])
    assert refusal(await served.ask("POST", PATH, body, Idempotency_Key="other")) == GONE


@pytest.mark.parametrize("kind", ["no input", "reference", "reference alone", "denied"])
async def test_an_answer_in_one_slot_is_told_whatever_its_input_needs(served: Served, kind: str) -> None:
    served.engine.has = lambda refs: True  # type: ignore[method-assign]
    call = {"type": "mcp_approval_request", "id": "a", "name": "f", "arguments": "{}", "server_label": "s"}
    made = (await asked(served, "first", input=[{"role": "user", "content": "hi"}, call])).json
    first, reference = made["id"], {"type": "item_reference", "id": made["output"][0]["id"]}
    denial = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": False}
    body: dict[str, Any] = {
        "no input": {"input": None, "previous_response_id": first},
        "reference": {"input": [{"role": "user", "content": "again"}, reference], "previous_response_id": first},
        "reference alone": {"input": [{"role": "user", "content": "again"}, reference]},
        "denied": {"input": [denial], "previous_response_id": first},
    }[kind]
    second = (await asked(served, "key", **body)).json
    items = (await served.ask("GET", f"{PATH}/{second['id']}/input_items")).json
    forget(served, first)
    client = await served.client()
    client.send("POST", PATH, body, Idempotency_Key="key")
    finish_all(await served.job())
    again = await client.answer()
    assert (again.status, again.json["id"], again.json["output"]) == (200, second["id"], second["output"])
    assert (await served.ask("GET", f"{PATH}/{second['id']}/input_items")).json == items, "as they were resolved"
    other = await served.ask("POST", PATH, body, Idempotency_Key="other")
    assert other.status in (400, 404) and served.engine.jobs.empty()


async def test_what_was_not_kept_yet_is_kept_without_the_items_that_are_gone(served: Served) -> None:
    """Its frontend died before its end, and an item that it names was forgotten meanwhile."""
    served.engine.has = lambda refs: True  # type: ignore[method-assign]
    reference = {"type": "item_reference", "id": (await asked(served, "first")).json["output"][0]["id"]}
    name = (await served.ask("POST", "/v1/conversations", {})).json["id"]
    before = dict(served.engine.payloads)
    body = {"input": [reference, {"role": "user", "content": "again"}], "conversation": name}
    made = (await asked(served, "key", **body)).json
    served.engine.payloads.clear()
    served.engine.payloads.update(before)
    forget(served, reference["id"])
    for _ in range(2):
        client = await served.client()
        client.send("POST", PATH, body, Idempotency_Key="key")
        finish_all(await served.job())
        assert (await client.answer()).json["id"] == made["id"]
        found = await served.ask("GET", f"{PATH}/{made['id']}")
        assert (found.status, found.json["output"]) == (200, made["output"])
        (kept,) = (await served.ask("GET", f"{PATH}/{made['id']}/input_items")).json["data"]
        said = (await served.ask("GET", f"/v1/conversations/{name}/items?order=asc")).json["data"]
        assert [one["id"] for one in said] == [kept["id"], made["output"][0]["id"]]


@pytest.mark.parametrize("has_slots", [True, False])
async def test_one_in_the_background_goes_on_in_its_slots_or_fails(served: Served, has_slots: bool) -> None:
    first = (await asked(served, "first")).json["id"]
    body = {"input": None if has_slots else "hi", "previous_response_id": first, "background": True}
    begun = (await served.ask("POST", PATH, body)).json["id"]
    await served.job()
    forget(served, first)
    if not has_slots:
        served.engine.kept_jobs.clear()
    make_app(served.engine, SETTINGS)
    if has_slots:
        finish_all(await served.job())
        await served.release()
    found = (await served.ask("GET", f"{PATH}/{begun}")).json
    assert found["status"] == ("completed" if has_slots else "failed")
    assert served.engine.jobs.empty()


@pytest.mark.parametrize("turns_first", [True, False])
async def test_a_key_is_of_one_request_however_many_turns_it_takes(served: Served, turns_first: bool) -> None:
    bodies: list[dict[str, Any]] = [{}, {"tools": [TOOL]}]
    first, second = reversed(bodies) if turns_first else bodies
    assert (await asked(served, "key", **first)).status == 200
    answer = await served.ask("POST", PATH, {"input": "hi", **second}, Idempotency_Key="key")
    assert (answer.status, answer.error["param"]) == (422, "Idempotency-Key")


async def test_one_that_goes_on_from_two_is_refused_whatever_its_key(served: Served) -> None:
    """Whose frontend need not be the conversation's."""
    served.engine.frontends = 2
    name = (await served.ask("POST", "/v1/conversations", {})).json["id"]
    body = {"input": "hi", "conversation": name, "previous_response_id": f"resp_{'0' * 26}"}
    for number in range(6):
        answer = await served.ask("POST", PATH, body, Idempotency_Key=f"key-{number}")
        assert (answer.status, answer.error["param"]) == (400, "previous_response_id")
