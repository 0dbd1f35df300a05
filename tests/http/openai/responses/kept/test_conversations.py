"""Conversations: made, changed, listed, deleted; and responses that go on with one and add to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import ChatPrompt
from actorserve.http.generation.job import Job
from actorserve.http.openai.responses.conversations import MOST, ConversationStore, StoredConversation
from actorserve.http.openai.responses.stored import History, StoredResponse
from tests.http.fakes import FakeEngine, finish_all, rendered, say
from tests.http.openai.responses.test_runs import TOOL, Noted
from tests.http.serving import Answer, Served, serving

PATH = "/v1/conversations"
NAME = "conv_00" + "0" * 24
HELLO = {"role": "user", "content": "hello"}


@pytest_asyncio.fixture
async def longest() -> AsyncIterator[Served]:
    """It takes bodies that are longer than a conversation may be."""
    async with serving(max_body_bytes=4 * MOST) as running:
        yield running


async def made(served: Served, **fields: Any) -> str:
    """Its path."""
    answer = await served.ask("POST", PATH, fields)
    assert answer.status == 200 and answer.json["object"] == "conversation"
    return f"{PATH}/{answer.json['id']}"


async def respond(
    served: Served,
    path: str,
    given: Any = "hi",
    finish: int = Finish.STOP,
    text: str = "yes",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Answer:
    """A response of this conversation, which says this."""
    client = await served.client()
    body = {"input": given, "conversation": path.rpartition("/")[2], **fields}
    client.send("POST", "/v1/responses", body, **headers or {})
    job = await served.job()
    rendered(job)
    say(job, 0, text, 3, finish)
    answer = await client.answer()
    client.leave()
    return answer


async def texts(served: Served, path: str) -> list[tuple[str, str]]:
    """(role, text) of all items."""
    data = (await served.ask("GET", f"{path}/items?order=asc&limit=100")).json["data"]
    assert all(item["status"] == "completed" for item in data)
    return [(item["role"], item["content"][0]["text"]) for item in data]


def asked(job: Job) -> list[Any]:
    prompt = job.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in msgspec.json.decode(prompt.messages)]


async def test_made_changed_and_deleted(served: Served) -> None:
    path = await made(served, metadata={"a": "b"}, items=[HELLO])
    answer = (await served.ask("GET", path)).json
    assert answer["metadata"] == {"a": "b"} and set(answer) == {"id", "object", "created_at", "metadata"}
    assert (await served.ask("POST", path, {"metadata": {"c": "d"}})).json == answer | {"metadata": {"c": "d"}}
    assert (await served.ask("GET", path)).json["metadata"] == {"c": "d"}
    assert await texts(served, path) == [("user", "hello")]
    assert (await served.ask("DELETE", path)).json == {
        "id": answer["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
    assert (await served.ask("GET", path)).status == (await served.ask("DELETE", path)).status == 404


async def test_its_items(served: Served) -> None:
    path = await made(served)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "mine"}
    added = (await served.ask("POST", f"{path}/items", {"items": [HELLO, call]})).json
    first, second = added["data"]
    assert (added["first_id"], added["last_id"], added["has_more"]) == (first["id"], "mine", False)
    assert first["type"] == "message" and first["content"] == [{"type": "input_text", "text": "hello"}]
    assert second == call and (await served.ask("GET", f"{path}/items/mine")).json == call
    listed = (await served.ask("GET", f"{path}/items?limit=1")).json
    assert [item["id"] for item in listed["data"]] == ["mine"] and listed["has_more"]
    assert (await served.ask("GET", f"{path}/items?after=mine")).json["data"] == [first]
    assert (await served.ask("DELETE", f"{path}/items/mine")).json == (await served.ask("GET", path)).json
    assert (await served.ask("GET", f"{path}/items/mine")).status == 404
    assert (await served.ask("GET", f"{path}/items")).json["data"] == [first]


async def test_responses_go_on_with_it(served: Served) -> None:
    path = await made(served, items=[{"role": "system", "content": "be kind"}])
    first = (await respond(served, path)).json
    assert first["conversation"] == {"id": path.rpartition("/")[2]}
    second = await respond(served, path, [HELLO], stream=True, store=False)
    assert b'"type":"response.completed"' in second.body
    client = await served.client()
    client.send("POST", "/v1/responses", {"input": "last", "conversation": {"id": path.rpartition("/")[2]}})
    job = await served.job()
    assert asked(job) == ["be kind", "hi", "yes", "hello", "yes", "last"]
    finish_all(job, "end")
    await client.answer()
    said = [("system", "be kind"), ("user", "hi"), ("assistant", "yes"), ("user", "hello"), ("assistant", "yes")]
    assert await texts(served, path) == [*said, ("user", "last"), ("assistant", "end0")]
    found = (await served.ask("GET", f"{path}/items/{first['output'][0]['id']}")).json
    assert found == first["output"][0]


async def test_input_may_be_left_out_where_the_conversation_has_it(served: Served) -> None:
    path = await made(served, items=[HELLO])
    assert (await respond(served, path, None)).status == 200
    assert await texts(served, path) == [("user", "hello"), ("assistant", "yes")]


async def test_one_in_the_background_adds_to_it(served: Served) -> None:
    path = await made(served)
    client = await served.client()
    body = {"input": "hi", "conversation": path.rpartition("/")[2], "background": True}
    client.send("POST", "/v1/responses", body)
    job = await served.job()
    answer = (await client.answer()).json
    assert answer["status"] == "queued" and await texts(served, path) == []
    finish_all(job)
    await served.release()
    assert await texts(served, path) == [("user", "hi"), ("assistant", "yes0")]
    assert (await served.ask("GET", f"/v1/responses/{answer['id']}")).json["status"] == "completed"


async def test_one_with_tools_of_servers_adds_to_it() -> None:
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        path = await made(served)
        answer = (await respond(served, path, tools=[TOOL])).json
        items = (await served.ask("GET", f"{path}/items?order=asc")).json["data"]
        assert [item["type"] for item in items] == ["message", "mcp_list_tools", "message"]
        assert items[1:] == answer["output"]


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_it_stays_with_its_frontend_whatever_its_idempotency_key(tools: list[Any]) -> None:
    """Which names another frontend for some: that one would give it back."""
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        served.engine.frontends = 2
        path = await made(served)
        for number in range(6):
            client = await served.client()
            body = {"input": "hi", "conversation": path.rpartition("/")[2], "tools": tools}
            client.send("POST", "/v1/responses", body, Idempotency_Key=f"key-{number}")
            finish_all(await served.job())
            assert (await client.answer()).status == 200
        items = (await served.ask("GET", f"{path}/items?limit=100")).json["data"]
        assert len(items) == 6 * 2 + (1 if tools else 0), "the server's tools are listed once"


async def test_one_with_tools_of_servers_that_is_asked_again_adds_once() -> None:
    async with serving(tools=Noted(), tool_parser="hermes") as served:
        path = await made(served)
        client = await served.client()
        body = {"input": "hi", "conversation": path.rpartition("/")[2], "tools": [TOOL]}
        client.send("POST", "/v1/responses", body, Idempotency_Key="key")
        finish_all(await served.job())
        first = (await client.answer()).json
        listed = (await served.ask("GET", f"{path}/items")).json
        again = await served.ask("POST", "/v1/responses", body, Idempotency_Key="key")
        assert again.json["output"] == first["output"]
        assert (await served.ask("GET", f"{path}/items")).json == listed
        await served.ask("DELETE", path)
        again = await served.ask("POST", "/v1/responses", body, Idempotency_Key="key")
        assert again.json["output"] == first["output"], "whatever has come of the conversation"


async def test_an_answer_that_is_kept_is_told_whatever_has_come_of_the_response_before() -> None:
    async with serving() as served:
        served.engine.has = lambda refs: True  # type: ignore[method-assign]

        async def asked_for(key: str, **body: Any) -> Answer:
            client = await served.client()
            client.send("POST", "/v1/responses", {"input": "hi", **body}, Idempotency_Key=key)
            finish_all(await served.job())
            return await client.answer()

        first = (await asked_for("first")).json["id"]
        assert (await asked_for("key", previous_response_id=first)).status == 200
        served.engine.payloads.clear()
        assert (await asked_for("key", previous_response_id=first)).status == 200
        body = {"input": "hi", "previous_response_id": first}
        answer = await served.ask("POST", "/v1/responses", body, Idempotency_Key="other")
        assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")


async def test_an_answer_that_is_kept_is_told_whatever_has_come_of_its_conversation() -> None:
    async with serving() as served:
        path = await made(served)
        assert (await respond(served, path, headers={"Idempotency_Key": "key"})).status == 200
        await served.ask("DELETE", path)
        served.engine.has = lambda refs: True  # type: ignore[method-assign]
        assert (await respond(served, path, headers={"Idempotency_Key": "key"})).status == 200
        body = {"input": "hi", "conversation": path.rpartition("/")[2]}
        answer = await served.ask("POST", "/v1/responses", body, Idempotency_Key="other")
        assert (answer.status, answer.error["param"]) == (404, "conversation")


async def test_an_item_whose_id_another_has(served: Served) -> None:
    mine = {"type": "message", "id": "m1", **HELLO}
    path = await made(served, items=[mine])
    other = mine | {"content": "bye"}
    answer = await served.ask("POST", f"{path}/items", {"items": [other]})
    assert (answer.status, answer.error["param"]) == (400, "items[0].id")
    answer = await served.ask("POST", PATH, {"items": [mine, other]})
    assert (answer.status, answer.error["param"]) == (400, "items[1].id")
    assert (await served.ask("POST", f"{path}/items", {"items": [mine]})).status == 200, "the same"
    assert (await respond(served, path, [other])).status == 200
    assert await texts(served, path) == [("user", "hello"), ("user", "bye"), ("assistant", "yes")]


async def test_an_item_of_it_is_found_by_its_id(served: Served) -> None:
    mine = {"type": "message", "id": "m1", **HELLO}
    path = await made(served, items=[mine])
    reference = {"type": "item_reference", "id": "m1"}
    assert (await respond(served, path, [reference, {"role": "user", "content": "and?"}])).status == 200
    assert [text for _, text in await texts(served, path)] == ["hello", "and?", "yes"]
    for name in (None, path.rpartition("/")[2]):
        body = {"input": [reference], "conversation": name}
        answer = await served.ask("POST", "/v1/responses/input_tokens", body)
        assert answer.status == (404 if name is None else 200)


async def test_a_conversation_that_is_too_long_may_be_made_shorter(longest: Served) -> None:
    path = await made(longest, items=[{"role": "user", "content": "a" * (MOST - 1000), "id": "mine"}])
    assert (await respond(longest, path, text="b" * 1000)).status == 200
    answer = await longest.ask("POST", path, {"metadata": {"a": "b"}})
    assert (answer.status, answer.error["param"]) == (413, "metadata")
    assert (await longest.ask("POST", path, {"metadata": {}})).status == 200
    items = (await longest.ask("GET", f"{path}/items?order=asc")).json["data"]
    for item in (items[1], items[0]):
        assert (await longest.ask("DELETE", f"{path}/items/{item['id']}")).status == 200
    assert (await longest.ask("POST", path, {"metadata": {"a": "b"}})).status == 200


async def test_what_was_ended_adds_nothing(served: Served) -> None:
    path = await made(served)
    assert (await respond(served, path, finish=Finish.ABORT)).json["status"] == "cancelled"
    assert await texts(served, path) == []


async def test_a_conversation_that_is_deleted_meanwhile_stays_away(served: Served) -> None:
    path = await made(served)
    client = await served.client()
    client.send("POST", "/v1/responses", {"input": "hi", "conversation": path.rpartition("/")[2]})
    job = await served.job()
    await served.ask("DELETE", path)
    finish_all(job)
    assert (await client.answer()).status == 200
    assert (await served.ask("GET", path)).status == 404


async def test_its_tokens_are_counted(served: Served) -> None:
    path = await made(served, items=[HELLO])
    body = {"input": "hi", "conversation": path.rpartition("/")[2]}
    assert (await served.ask("POST", "/v1/responses/input_tokens", body)).status == 200
    prompt = served.engine.asked[-1]
    assert [message["content"] for message in msgspec.json.decode(prompt.messages)] == ["hello", "hi"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/responses", {"input": "a", "conversation": NAME}, 404, "conversation"),
        ("/v1/responses", {"input": "a", "conversation": {"id": "x"}}, 404, "conversation"),
        ("/v1/responses", {"input": "a", "conversation": 1}, 400, "conversation"),
        ("/v1/responses", {"input": "a", "conversation": "conv_ff" + "0" * 24}, 404, "conversation"),
        ("/v1/responses/input_tokens", {"input": "a", "conversation": NAME}, 404, "conversation"),
        ("/v1/responses/compact", {"input": "a", "conversation": NAME}, 400, "conversation"),
        (PATH, {"items": [{"type": "web_search_call"}]}, 400, "items[0].type"),
        (PATH, {"items": [HELLO, {"role": "user"}]}, 400, "items[1].content"),
        (PATH, {"metadata": {"a" * 65: ""}}, 400, "metadata"),
        (PATH, {"model": "tiny", "inputs": "Mistral's are answered at once"}, 400, "inputs"),
        (PATH, {"items": [{"role": "user", "content": "a" * MOST}]}, 413, "items"),
        (f"{PATH}/{NAME}", {"metadata": {}}, 404, "conversation_id"),
        (f"{PATH}/{NAME}/items", {"items": []}, 404, "conversation_id"),
        (f"{PATH}/{NAME}", {}, 400, "metadata"),
        (f"{PATH}/{NAME}/items", {}, 400, "items"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(
    longest: Served, path: str, body: Any, status: int, param: str
) -> None:
    answer = await longest.ask("POST", path, body)
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_it_says_alone_what_stands_before_the_input(served: Served) -> None:
    path = await made(served)
    first = (await respond(served, path)).json["id"]
    body = {"input": "a", "conversation": path.rpartition("/")[2], "previous_response_id": first}
    answer = await served.ask("POST", "/v1/responses", body)
    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")


async def test_an_answer_has_room_behind_what_requests_may_add(longest: Served) -> None:
    path = await made(longest, items=[{"role": "user", "content": "a" * (MOST - 1000)}])
    body = {"input": "b" * 1000, "conversation": path.rpartition("/")[2]}
    answer = await longest.ask("POST", "/v1/responses", body)
    assert (answer.status, answer.error["param"]) == (413, "input")
    assert (await respond(longest, path)).status == 200


def test_the_same_response_adds_once() -> None:
    store = ConversationStore(FakeEngine())
    store.put(StoredConversation(NAME, 1, {}, []))
    body = {"id": "resp_a", "status": "completed", "conversation": {"id": NAME}}
    said = [{"type": "message", "id": "msg_a0000"}]
    ended = StoredResponse(body | {"output": said}, [{"type": "message", "id": "in_a0000"}])
    for _ in range(2):
        store.add_response(ended)
    found = store.get(NAME, "")
    assert [item["id"] for item in found.items] == ["in_a0000", "msg_a0000"]
    assert History(found.said()).without("a0000").items == []


@pytest.mark.parametrize("text", ["a", "a" * (1 << 21)])
def test_an_answer_that_is_too_long_with_its_logprobs_is_there_without_them(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Limited(FakeEngine):
        def put(self, key: bytes, payload: bytes) -> bool:
            return len(payload) < 1 << 21 and super().put(key, payload)

    store = ConversationStore(Limited())
    store.put(StoredConversation(NAME, 1, {}, []))
    part = {"type": "output_text", "text": text, "logprobs": [{"token": "a" * (1 << 21)}], "annotations": []}
    body = {"id": "resp_a", "status": "completed", "conversation": {"id": NAME}}
    said: list[Any] = [
        {"type": "reasoning", "id": "rs_a0000"},
        {"type": "message", "id": "msg_a0001", "content": [part]},
    ]
    store.add_response(StoredResponse(body | {"output": said}, []))
    found = [item.get("content") for item in store.get(NAME, "").items]
    assert found == ([None, [part | {"logprobs": []}]] if len(text) == 1 else [])
    assert ("resp_a is not in its conversation" in caplog.text) == (len(text) > 1)


def test_other_frontends_read_also_a_short_one() -> None:
    """Records that are shorter than a response's are not looked at there."""
    engine = FakeEngine()
    ConversationStore(engine).put(StoredConversation(NAME, 1, {}, []))
    (data,) = engine.payloads.values()
    assert len(data) > 256 and json.loads(data)["id"] == NAME
    engine.index, engine.frontends, engine.others_payloads = 1, 2, {0: engine.payloads}
    assert ConversationStore(engine).get(NAME, "").id == NAME
