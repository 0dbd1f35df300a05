"""What is kept of a response: that it comes back as it was, and what may be done with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.stored import StoredResponse, history, not_found
from tests.http.fakes import BrokenParser, finish_all, rendered, say
from tests.http.openai.responses.scripted import SAID, TWICE, USAGE
from tests.http.serving import Served


def stored(
    key: str, previous: str | None = None, status: str | None = None, background: bool = False
) -> StoredResponse:
    echo: dict[str, Any] = {"previous_response_id": previous, "background": background, "tools": [{"a": 1 << 70}]}
    answer = ResponseAnswer(key, "m", 1, echo)
    whole = answer.whole(SAID, "stop", USAGE, 2) if status is None else answer.response(status)
    return StoredResponse(whole, [{"type": "message", "role": "user", "content": key}])


def test_it_comes_back_as_it_was() -> None:
    kept = stored("a")
    data = kept.encode()
    assert StoredResponse.decode(data) == kept and len(data) > 300
    assert (kept.id, kept.status, kept.background, kept.previous) == ("resp_a", "completed", False, None)


@pytest.mark.parametrize(
    ("status", "after"),
    [("queued", "cancelled"), ("in_progress", "cancelled"), ("completed", "completed"), ("failed", "failed")],
)
def test_what_runs_in_the_background_can_be_cancelled(status: str, after: str) -> None:
    kept = stored("a", status=status, background=True)
    assert kept.cancelled().response == kept.response | {"status": after}
    assert kept.status == status and kept.cancelled().input == kept.input


def test_nothing_else_can_be_cancelled() -> None:
    with pytest.raises(ApiError) as raised:
        stored("a", status="in_progress").cancelled()
    assert (raised.value.status, raised.value.param) == (400, "response_id")


def test_history_is_all_that_was_said_oldest_first() -> None:
    kept = {one.id: one for one in (stored("a"), stored("b", "resp_a"), stored("c", "resp_b"))}
    items = history(kept.get, "resp_c")
    assert [item.get("content") if item.get("role") == "user" else item["id"] for item in items] == [
        "a",
        "msg_a0000",
        "b",
        "msg_b0000",
        "c",
        "msg_c0000",
    ]


def test_a_history_with_a_gap_is_refused() -> None:
    kept = {one.id: one for one in (stored("b", "resp_a"),)}
    for asked, missing in (("resp_x", "resp_x"), ("resp_b", "resp_a")):
        with pytest.raises(ApiError) as raised:
            history(kept.get, asked)
        assert raised.value.status == 400 and missing in raised.value.message
        assert (raised.value.param, raised.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_nobody_goes_on_from_what_did_not_end(status: str) -> None:
    with pytest.raises(ApiError, match=f"it is {status}") as raised:
        history({"resp_a": stored("a", status=status)}.get, "resp_a")
    assert raised.value.param == "previous_response_id"


def test_what_is_not_kept_is_not_found() -> None:
    error = not_found("resp_1")
    assert (error.status, error.param) == (404, "response_id") and "resp_1" in error.message


def test_calls_are_kept_whole() -> None:
    answer = ResponseAnswer("a", "m", 1, {"previous_response_id": None, "background": False})
    kept = StoredResponse(answer.whole(TWICE, "tool_calls", USAGE, 2), [])
    assert history({kept.id: StoredResponse.decode(kept.encode())}.get, kept.id) == kept.response["output"]


@pytest.mark.parametrize(
    ("query", "listed", "has_more"),
    [
        ("", "43210", False),
        ("?order=asc", "01234", False),
        ("?limit=2", "43", True),
        ("?limit=2&after=3", "21", True),
        ("?order=asc&limit=2&after=2", "34", False),
        ("?after=0", "", False),
    ],
)
async def test_its_input_is_listed_page_by_page(served: Served, query: str, listed: str, has_more: bool) -> None:
    items = [{"role": "user", "content": "hi", "id": str(number)} for number in range(5)]
    path = await made(served, items)
    body = (await served.ask("GET", path + query)).json
    assert [item["id"] for item in body["data"]] == list(listed) and body["has_more"] is has_more
    assert (body["first_id"], body["last_id"]) == ((listed[0], listed[-1]) if listed else (None, None))


async def test_a_page_has_20_items_and_what_it_cannot_be_is_refused(served: Served) -> None:
    path = await made(served, [{"role": "user", "content": "hi"}] * 21)
    body = (await served.ask("GET", path)).json
    assert len(body["data"]) == 20 and body["has_more"]
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")):
        answer = await served.ask("GET", f"{path}?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


async def made(served: Served, items: list[dict[str, Any]]) -> str:
    """The path of a response's input."""
    client = await served.client()
    client.send("POST", "/v1/responses", {"input": items})
    finish_all(await served.job())
    return f"/v1/responses/{(await client.answer()).json['id']}/input_items"


async def test_who_is_told_the_end_of_one_in_the_background_finds_it_kept(served: Served) -> None:
    """Also by another frontend, and before this one has come to write it down by itself."""
    served.engine.has = lambda refs: True  # type: ignore[method-assign]
    client = await served.client()
    client.send("POST", "/v1/responses", {"input": "hi", "background": True, "stream": True})
    running, reader = await served.job(), await served.job()
    finish_all(reader)
    last = json.loads((await client.answer()).body.strip().rpartition(b"data: ")[2])
    assert last["type"] == "response.completed" and not running.done.done()
    path = f"/v1/responses/{last['response']['id']}"
    for _ in range(2):
        assert (await served.ask("GET", path)).json == last["response"]
        if not running.done.done():
            finish_all(running)
            await served.release()


@pytest.mark.parametrize("fails", [True, False])
async def test_one_in_the_background_that_cannot_be_read_has_failed(
    served: Served, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = await served.ask("POST", "/v1/responses", {"input": "hi", "background": True})
    job = await served.job()
    rendered(job)
    job.choices[0].parser = BrokenParser(fails_at_once=True)
    if fails:
        say(job, 0, "half")
        job.fail(ApiError(500, "no"))
    else:
        say(job, 0, "all", 1, Finish.STOP)
    assert await served.release() is job
    found = (await served.ask("GET", f"/v1/responses/{begun.json['id']}")).json
    assert found["status"] == "failed" and "its log says" in found["error"]["message"]
    assert "a plugin's" in caplog.text


@pytest.mark.parametrize(("method", "what"), [("POST", "/cancel"), ("DELETE", "")])
async def test_what_was_cancelled_or_deleted_stays_so_whoever_reads_its_end(
    served: Served, method: str, what: str
) -> None:
    served.engine.has = lambda refs: True  # type: ignore[method-assign]
    begun = await served.ask("POST", "/v1/responses", {"input": "hi", "background": True})
    path = f"/v1/responses/{begun.json['id']}"
    client = await served.client()
    client.send("GET", f"{path}?stream=true")
    _, reader = await served.job(), await served.job()
    rendered(reader)
    assert (await served.ask(method, path + what)).status == 200
    finish_all(reader)
    await client.answer()
    found = await served.ask("GET", path)
    assert (found.status, found.json.get("status")) == ((200, "cancelled") if what else (404, None))
