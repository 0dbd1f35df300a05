"""/v1/messages/batches by Anthropic's own client: begun, listed, looked at, read, cancelled, removed."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anthropic as sdk
import msgspec
import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from actorserve.actors.files.batches import BatchState, BatchStore
from actorserve.actors.files.folder import Folder
from actorserve.actors.files.store import FileStore, NoRoom, Upload
from actorserve.http.anthropic.batches import requests as cutting
from actorserve.http.errors import ApiError
from actorserve.http.handlers.files import message_batches, sending
from actorserve.http.handlers.files.message_batches import MessageBatchesApi
from actorserve.http.settings import FileSettings
from actorserve.http.transport import body as bodies
from actorserve.http.transport.body import LEAST_BODIES, BodyBudget
from tests.http.files.scene import LINES, SECRET, anthropic_of, delete_before_cancelling, files_served
from tests.http.files.test_requests import Record, Request, left_by
from tests.http.serving import PATIENCE_S, SETTINGS, Served, serving

PATH = "/v1/messages/batches"
PARAMS: Any = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": 'Hi {["\\é'}]}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "tiny", "content": [], "usage": {}}


def asked(*names: str) -> Any:
    return [{"custom_id": name, "params": PARAMS} for name in names]


async def begin(client: AsyncAnthropic, *names: str, **more: Any) -> Any:
    return await client.messages.batches.create(requests=asked(*(names or ("a", "b"))), **more)


def end(folder: Path, batch_id: str, *results: dict[str, Any], **state: Any) -> None:
    """As the batcher does."""
    store = BatchStore(Folder(folder))
    for path, ok in zip(store.answers(batch_id), (True, False), strict=True):
        lines = [one for one in results if (one["result"]["type"] == "succeeded") is ok]
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    store.save(batch_id, msgspec.convert({"status": "completed", "total": 2, "ended_at": 7} | state, BatchState))


async def test_a_batch_is_begun_and_found(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    made = await begin(anthropic)
    assert made.id.startswith("msgbatch_") and made.type == "message_batch" and made.processing_status == "in_progress"
    assert (made.expires_at - made.created_at).total_seconds() == 24 * 3600
    assert made.request_counts.processing == 2 and made.results_url is None and made.ended_at is None
    assert await anthropic.messages.batches.retrieve(made.id) == made
    assert await anthropic.beta.messages.batches.retrieve(made.id)
    found = BatchStore(Folder(tmp_path)).get(made.id)
    assert found is not None
    lines = [json.loads(one) for one in BatchStore(Folder(tmp_path)).input(found.request).read_text().splitlines()]
    common = {"method": "POST", "url": "/v1/messages", "body": PARAMS}
    assert lines == [{"custom_id": name, **common} for name in "ab"] and os.listdir(tmp_path / "tmp") == []


async def test_counts_add_up(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    made = await begin(anthropic, *"abcdef")
    store = BatchStore(Folder(tmp_path))
    counts = {"total": 6, "completed": 1, "failed": 3, "expired": 1, "cancelled": 1}
    store.save(made.id, BatchState(status="in_progress", **counts))  # type: ignore[arg-type]
    found = (await anthropic.messages.batches.retrieve(made.id)).request_counts
    told = (found.processing, found.succeeded, found.errored, found.canceled, found.expired)
    assert told == (2, 1, 1, 1, 1)
    store.save(made.id, BatchState(status="failed", ended_at=1, **counts))  # type: ignore[arg-type]
    found = (await anthropic.messages.batches.retrieve(made.id)).request_counts
    assert (found.processing, found.errored) == (0, 3)


@pytest.mark.parametrize("at_once", [0, 1 << 20])
async def test_results_are_read_once_it_has_ended(
    anthropic: AsyncAnthropic, running: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(sending, "AT_ONCE", at_once)
    monkeypatch.setattr(sending, "PIECE", 10)
    made = await begin(anthropic)
    early = await running.ask("GET", f"{PATH}/{made.id}/results")
    assert early.status == 404 and early.json["error"]["type"] == "not_found_error" and early.json["type"] == "error"
    failure = {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}, "request_id": None}
    results = [
        {"custom_id": "a", "result": {"type": "succeeded", "message": MESSAGE}},
        {"custom_id": "b", "result": {"type": "errored", "error": failure}},
    ]
    end(tmp_path, made.id, *results, completed=1, failed=1)
    read = [one async for one in await anthropic.messages.batches.results(made.id)]
    assert [(one.custom_id, one.result.type) for one in read] == [("a", "succeeded"), ("b", "errored")]
    assert read[1].result.error.error.message == "bad"  # type: ignore[union-attr]
    assert (await running.ask("GET", f"{PATH}/{made.id}/results")).headers["content-type"] == "application/x-jsonl"


async def test_batches_are_listed_by_pages(anthropic: AsyncAnthropic, running: Served) -> None:
    names = [(await begin(anthropic, "a")).id for _ in range(5)][::-1]  # the newest first
    batches = anthropic.messages.batches
    assert [one.id async for one in batches.list(limit=2)] == names
    page = await batches.list(before_id=names[3], limit=2)
    assert [one.id for one in page.data] == names[1:3] and page.has_more and page.first_id == names[1]
    page = await batches.list(after_id=names[2], limit=2)
    assert [one.id for one in page.data] == names[3:] and page.has_more is False
    for query, said in (("after_id=none", "after_id"), ("limit=1001", "limit"), ("before_id=a&after_id=b", "one of")):
        answer = await running.ask("GET", f"{PATH}?{query}")
        assert answer.status == 400 and said in answer.json["error"]["message"]


async def test_a_batch_is_cancelled_until_it_has_ended(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    made = await begin(anthropic)
    with pytest.raises(sdk.BadRequestError, match="has not ended: cancel it first"):
        await anthropic.messages.batches.delete(made.id)
    cancelled = await anthropic.messages.batches.cancel(made.id)
    assert cancelled.processing_status == "canceling" and cancelled.cancel_initiated_at is not None
    end(tmp_path, made.id, status="cancelled", failed=2, cancelled=2)
    again = await anthropic.messages.batches.cancel(made.id)  # sent again, it has what it wanted
    assert again.processing_status == "ended" and again.request_counts.canceled == 2
    other = await begin(anthropic)
    end(tmp_path, other.id, completed=2)
    with pytest.raises(sdk.BadRequestError, match="has ended"):
        await anthropic.messages.batches.cancel(other.id)


async def test_one_that_is_removed_as_it_is_cancelled_is_not_there(
    anthropic: AsyncAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await begin(anthropic)
    delete_before_cancelling(monkeypatch)
    with pytest.raises(sdk.NotFoundError, match="No message batch found"):
        await anthropic.messages.batches.cancel(made.id)


async def test_a_batch_that_has_ended_is_removed_with_its_results(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    made = await begin(anthropic)
    end(tmp_path, made.id)
    gone = await anthropic.messages.batches.delete(made.id)
    assert (gone.id, gone.type) == (made.id, "message_batch_deleted")
    assert os.listdir(tmp_path / "batches") == os.listdir(tmp_path / "tmp") == []
    for ask in (anthropic.messages.batches.retrieve, anthropic.messages.batches.delete):
        with pytest.raises(sdk.NotFoundError, match="No message batch found"):
            await ask(made.id)


async def test_a_successor_finds_it_removed(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    """The frontend that had the request in hand died behind that."""
    made = await begin(anthropic)
    end(tmp_path, made.id)
    api = MessageBatchesApi(
        replace(SETTINGS, files=FileSettings(str(tmp_path), 1 << 20, SECRET)), 1000, BodyBudget(1000)
    )

    async def delete(record: Record) -> Any:
        asked = Request(record)
        asked.match_info["id"] = made.id
        answer = await api.delete(cast(web.Request, asked))
        return json.loads(cast(bytes, answer.body))

    record, again = Record(), Record()
    deleted = await delete(record)
    assert deleted["id"] == made.id and await delete(Record(left_by(record))) == deleted
    with pytest.raises(ApiError, match="No message batch found"):
        await delete(again)
    assert not again.noted  # nor does a successor of that say more


async def test_bodies_that_do_not_come_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those of others, and uploads: what is more is a 503, until they have come."""

    def watched(budget: BodyBudget, before: int, size: int) -> None:
        grow(budget, before, size)
        if budget.held >= 2 * LEAST_BODIES * (len(long) - 2):
            full.set()

    full, grow = asyncio.Event(), BodyBudget.grow
    monkeypatch.setattr(bodies, "MOST_UNFINISHED", 0)
    monkeypatch.setattr(BodyBudget, "grow", watched)
    long = json.dumps({"requests": [{"custom_id": "a", "params": PARAMS | {"system": "x" * 98_000}}]}).encode()
    part = b"--x\r\nContent-Disposition: form-data%s\r\n\r\n" + b"y" * 99_000
    kind = "multipart/form-data; boundary=x"
    async with files_served(tmp_path, 1 << 30, max_body_bytes=100_000) as served:
        waiting = [await served.client() for _ in range(LEAST_BODIES)]
        for client in waiting:
            client.send("POST", PATH, long[:-1], Content_Length=str(len(long)))
        await asyncio.wait_for(full.wait(), PATIENCE_S)
        for path, body, of in (
            (PATH, long, "application/json"),
            ("/v1/files", part % b'; name="file"; filename="a"', kind),
            ("/v1/files", part % b"", kind),
        ):
            asked = await served.client()
            asked.send("POST", path, body, Content_Type=of, Content_Length=str(len(body) + 1))
            answer = await asked.answer()
            assert answer.status == 503 and "not come whole" in answer.json["error"]["message"]
        for client in waiting:
            client.raw(long[-1:])
            assert (await client.answer()).status == 200
        assert (await served.ask("POST", PATH, long)).status == 200


async def test_neither_kind_is_seen_by_the_others_clients(anthropic: AsyncAnthropic, client: AsyncOpenAI) -> None:
    mine = await begin(anthropic)
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    fields: Any = {"endpoint": "/v1/completions", "completion_window": "24h"}
    other = await client.batches.create(input_file_id=file.id, **fields)
    assert [one.id for one in (await client.batches.list()).data] == [other.id]
    assert [one.id for one in (await anthropic.messages.batches.list()).data] == [mine.id]
    assert [one.id for one in (await client.files.list()).data] == [file.id]
    for ask, name in ((client.batches.retrieve, mine.id), (client.batches.cancel, mine.id)):
        with pytest.raises(openai.NotFoundError):
            await ask(name)
    for take in (anthropic.messages.batches.retrieve, anthropic.messages.batches.cancel):
        with pytest.raises(sdk.NotFoundError):
            await take(other.id)


async def test_other_clients_do_not_find_it(tmp_path: Path) -> None:
    async with files_served(tmp_path, api_keys=["one", "two"]) as served:
        async with anthropic_of(served, "one") as one, anthropic_of(served, "two") as two:
            made = await begin(one)
            end(tmp_path, made.id)
            assert (await two.messages.batches.list()).data == []
            batches = two.messages.batches
            for ask in (batches.retrieve, batches.cancel, batches.delete):
                with pytest.raises(sdk.NotFoundError):
                    await ask(made.id)
            answer = await served.ask("GET", f"{PATH}/{made.id}/results", x_api_key="two")
            assert answer.status == 404 and (await one.messages.batches.retrieve(made.id)).id == made.id


async def test_the_same_request_once_more_begins_no_second(anthropic: AsyncAnthropic) -> None:
    key = {"Idempotency-Key": "k"}
    first = await begin(anthropic, extra_headers=key)
    assert await begin(anthropic, extra_headers=key) == first
    with pytest.raises(sdk.UnprocessableEntityError, match="another body"):
        await begin(anthropic, "c", extra_headers=key)
    assert len((await anthropic.messages.batches.list()).data) == 1


async def test_what_is_too_much_is_refused(
    anthropic: AsyncAnthropic, running: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with files_served(tmp_path / "small", 1 << 10) as small, anthropic_of(small) as client:
        with pytest.raises(sdk.RequestTooLargeError, match="--files-limit"):
            await begin(client, *map(str, range(100)))
        assert os.listdir(tmp_path / "small" / "tmp") == [] == (await client.messages.batches.list()).data
    with monkeypatch.context() as patch:
        patch.setattr(cutting, "MOST_REQUESTS", 2)
        with pytest.raises(sdk.BadRequestError, match="requests: a batch has at most 2"):
            await begin(anthropic, *"abc")
        patch.setattr(message_batches, "MOST_BYTES", 50)
        with pytest.raises(sdk.RequestTooLargeError, match="at most 50 bytes"):
            await begin(anthropic)
    answer = await running.ask("POST", PATH, {"requests": asked("a")}, Content_Encoding="gzip")
    assert answer.status == 415
    answer = await running.ask("POST", PATH, {"requests": asked("a")}, Content_Type="text/plain")
    assert answer.status == 415 and os.listdir(tmp_path / "batches") == []


async def test_a_full_disk_is_told(anthropic: AsyncAnthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    made = await begin(anthropic)
    monkeypatch.setattr(BatchStore, "cancel", full)
    monkeypatch.setattr(Upload, "write", full)
    for ask in (begin(anthropic), anthropic.messages.batches.cancel(made.id)):
        with pytest.raises(sdk.APIStatusError, match="disk of --files-dir is full") as raised:
            await ask
        assert raised.value.status_code == 507


async def test_its_bytes_count(anthropic: AsyncAnthropic, tmp_path: Path) -> None:
    """Among those of --files-limit: a file has what is left."""
    made = await begin(anthropic, *map(str, range(50)))
    size = (tmp_path / "batches" / made.id / "content").stat().st_size
    room = FileStore(Folder(tmp_path), size + 10).upload(f"file-{'1' * 24}")
    try:
        room.begin()
        room.write(b"x" * 10)
        with pytest.raises(NoRoom):
            room.write(b"x")
    finally:
        room.drop()


async def test_without_a_folder_there_are_none() -> None:
    async with serving() as served:
        answer = await served.ask("GET", PATH)
        assert answer.status == 404 and "--files-dir" in answer.json["error"]["message"]
