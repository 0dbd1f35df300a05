"""/v1/files by OpenAI's own client: kept, listed, read, removed; and forms that are none."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from actorserve.actors.files.folder import Folder
from actorserve.actors.files.owner import Owner
from actorserve.actors.files.store import FileStore, InUse, Upload
from actorserve.http.errors import ApiError
from actorserve.http.handlers.files import sending
from actorserve.http.handlers.files.files import FilesApi
from actorserve.http.settings import FileSettings
from actorserve.http.transport import upload
from actorserve.http.transport.body import BodyBudget
from tests.http.files.scene import LINES, SECRET, client_of, files_served, form
from tests.http.files.test_requests import Record, Request, left_by
from tests.http.serving import SETTINGS, Served, serving

TYPE = "multipart/form-data; boundary=x"
FILE = 'file"; filename="in.jsonl'


async def test_a_file_is_kept_until_it_is_deleted(client: AsyncOpenAI, tmp_path: Path) -> None:
    made = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    assert (made.bytes, made.filename, made.purpose, made.status) == (len(LINES), "in.jsonl", "batch", "processed")
    assert made.id.startswith("file-") and made.object == "file" and made.expires_at is None
    assert await client.files.retrieve(made.id) == made
    content = await client.files.content(made.id)
    assert content.content == LINES
    deleted = await client.files.delete(made.id)
    assert deleted.deleted and deleted.id == made.id
    with pytest.raises(openai.NotFoundError, match=f"No such File object: {made.id}"):
        await client.files.retrieve(made.id)
    assert os.listdir(tmp_path / "tmp") == [] == os.listdir(tmp_path / "files")


async def test_files_are_listed_by_pages(client: AsyncOpenAI) -> None:
    names = [(await client.files.create(file=(str(index), b"x"), purpose="batch")).id for index in range(5)]
    other = await client.files.create(file=("other", b"x"), purpose="user_data")
    assert [one.id async for one in client.files.list(limit=2)] == [other.id, *names[::-1]]
    assert [one.id async for one in client.files.list(order="asc", purpose="batch")] == names
    page = await client.files.list(after=names[1], limit=2, order="asc")
    assert [one.id for one in page.data] == names[2:4] and page.has_more
    with pytest.raises(openai.BadRequestError, match="there is no file 'none'"):
        await client.files.list(after="none")


async def test_a_file_expires(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    made = await client.files.create(file=("a", b"x"), purpose="assistants", expires_after=expiry)
    assert made.expires_at == made.created_at + 3600
    expiry["seconds"] = 5
    with pytest.raises(openai.BadRequestError, match="expires_after: "):
        await client.files.create(file=("a", b"x"), purpose="batch", expires_after=expiry)
    now = made.created_at + 3601
    monkeypatch.setattr("actorserve.actors.files.store.time.time", lambda: now)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)


async def test_a_long_file_is_never_whole_in_memory(
    running: Served, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upload, "PIECE", 1000)
    monkeypatch.setattr(sending, "AT_ONCE", 10)
    monkeypatch.setattr(sending, "PIECE", 1000)
    pieces: list[int] = []
    write = Upload.write

    def count(one: Upload, data: bytes) -> None:
        pieces.append(len(data))
        write(one, data)

    monkeypatch.setattr(Upload, "write", count)
    content = os.urandom(200_000)  # more than --max-body-bytes
    made = await client.files.create(file=("long", content), purpose="user_data")
    assert sum(pieces) == len(content) and len(pieces) > 1 and max(pieces) < len(content)
    assert (await client.files.content(made.id)).content == content
    assert (await running.ask("HEAD", f"/v1/files/{made.id}/content")).headers["content-length"] == str(len(content))


async def test_what_has_no_room_is_refused(tmp_path: Path) -> None:
    async with files_served(tmp_path, 100) as served, client_of(served) as client:
        with pytest.raises(openai.APIStatusError, match="longer than the 100 bytes of --files-limit") as raised:
            await client.files.create(file=("a", b"x" * 101), purpose="batch")
        assert raised.value.status_code == 413
        await client.files.create(file=("a", b"x" * 60), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="more than the 100 bytes of --files-limit"):
            await client.files.create(file=("a", b"x" * 60), purpose="batch")
        assert os.listdir(tmp_path / "tmp") == []


async def test_a_full_disk_is_told(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("actorserve.actors.files.store.write_all", full)
    with pytest.raises(openai.APIStatusError, match="disk of --files-dir is full") as raised:
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert raised.value.status_code == 507


async def test_a_successor_finds_it_deleted(tmp_path: Path) -> None:
    """The frontend that had the request in hand died behind that."""
    files_settings = FileSettings(str(tmp_path), 1 << 20, SECRET)
    api, store = (
        FilesApi(replace(SETTINGS, files=files_settings), BodyBudget(1000)),
        FileStore(Folder(tmp_path), 1 << 20),
    )
    upload, file_id = store.upload(f"file-{'1' * 24}"), f"file-{'1' * 24}"
    upload.begin()
    upload.keep(Owner(), "a", "batch", 1)
    upload.drop()

    async def delete(record: Record) -> Any:
        request = Request(record)
        request.match_info["id"] = file_id
        answer = await api.delete(cast(web.Request, request))
        return json.loads(cast(bytes, answer.body))

    record = Record()
    deleted = await delete(record)
    assert deleted["deleted"] and await delete(Record(left_by(record))) == deleted
    again = Record()
    with pytest.raises(ApiError, match="No such File object"):
        await delete(again)
    assert not again.noted  # nor does a successor of that say more


async def test_a_file_that_has_expired_and_is_read_is_in_the_way(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise InUse("batch_x")

    monkeypatch.setattr(Upload, "keep", read)
    with pytest.raises(openai.ConflictError, match="is read by batch_x still: use another key"):
        await client.files.create(file=("a", b"x"), purpose="batch")


async def test_other_clients_do_not_find_it(tmp_path: Path) -> None:
    async with files_served(tmp_path, api_keys=["one", "two"]) as served:
        async with client_of(served, "one") as one, client_of(served, "two") as two:
            made = await one.files.create(file=("a", b"x"), purpose="batch")
            assert (await two.files.list()).data == [] and len((await one.files.list()).data) == 1
            for ask in (two.files.retrieve, two.files.delete, two.files.content):
                with pytest.raises(openai.NotFoundError):
                    await ask(made.id)


async def test_the_same_request_once_more_makes_no_second(client: AsyncOpenAI) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.files.create(file=("a", b"x"), purpose="batch", extra_headers=key)
    again = await client.files.create(file=("a", b"x"), purpose="batch", extra_headers=key)
    assert again == first and len((await client.files.list()).data) == 1
    with pytest.raises(openai.UnprocessableEntityError, match="was used for a request with another body"):
        await client.files.create(file=("a", b"y"), purpose="batch", extra_headers=key)
    assert (await client.files.content(first.id)).content == b"x"


@pytest.mark.parametrize(
    ("parts", "end", "said"),
    [
        ([('"purpose"', b"batch")], True, "file is missing"),
        ([('"purpose"', b"other"), (f'"{FILE}"', b"x")], True, "purpose must be one of assistants, audio, batch"),
        ([('"purpose"', b"b" * 2000), (f'"{FILE}"', b"x")], True, "purpose is longer than"),
        ([('"purpose"', b"batch"), (f'"{FILE}"', b"x")], False, "The form is malformed"),
        ([], True, "file is missing"),
        ([('"p"', b"")] * 65, True, "more than 64"),
    ],
)
async def test_a_form_that_is_none_is_refused(
    running: Served, tmp_path: Path, parts: list[tuple[str, bytes]], end: bool, said: str
) -> None:
    answer = await running.ask("POST", "/v1/files", form(*parts, end=end), Content_Type=TYPE)
    assert answer.status == 400 and said in answer.error["message"]
    assert not (tmp_path / "tmp").exists() or os.listdir(tmp_path / "tmp") == []


async def test_a_parts_header_that_is_none_is_refused(running: Served) -> None:
    part = form((f'"{FILE}"', b"x"))
    for broken in (part.replace(b"Content-Disposition:", b"no header;"), part.replace(b"form-data;", b"a" * 9000)):
        assert broken != part
        answer = await running.ask("POST", "/v1/files", broken, Content_Type=TYPE)
        assert answer.status == 400 and answer.error["message"].startswith("The form is malformed: ")


async def test_fields_come_in_any_order_and_a_client_may_wait_to_be_asked(running: Served) -> None:
    client = await running.client()
    body = form((f'"{FILE}"', LINES), ('"purpose"', b"batch"))
    client.send("POST", "/v1/files", b"", Content_Type=TYPE, Content_Length=str(len(body)), Expect="100-continue")
    assert (await client.head()).status == 100
    client.raw(body)
    answer = await client.answer()
    assert answer.status == 200 and answer.json["bytes"] == len(LINES) and answer.json["filename"] == "in.jsonl"


async def test_what_is_no_form_is_refused(running: Served) -> None:
    answer = await running.ask("POST", "/v1/files", b"{}", Content_Type="application/json")
    assert answer.status == 415
    answer = await running.ask("POST", "/v1/files", b"", Content_Type=TYPE, Content_Encoding="gzip")
    assert answer.status == 415


async def test_a_client_that_goes_leaves_nothing(running: Served, tmp_path: Path) -> None:
    client = await running.client()
    body = form(('"purpose"', b"batch"), (f'"{FILE}"', LINES))
    client.send("POST", "/v1/files", body[:-20], Content_Type=TYPE, Content_Length=str(len(body)))
    await client.writer.drain()
    while not (tmp_path / "tmp").exists() or not os.listdir(tmp_path / "tmp"):
        await running.ask("GET", "/health")
    client.leave()
    while os.listdir(tmp_path / "tmp"):
        await running.ask("GET", "/health")


async def test_a_client_that_goes_at_once_leaves_nothing(
    running: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk takes its time to begin."""
    begin, begun, go_on = Upload.begin, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(one: Upload) -> None:
        begin(one)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    monkeypatch.setattr(Upload, "begin", slow)
    client = await running.client()
    client.send("POST", "/v1/files", b"--x", Content_Type=TYPE, Content_Length="100")
    await begun.wait()
    client.leave()
    for _ in range(3):  # turns, in which it is seen to be gone
        await running.ask("GET", "/health")
    go_on.set()
    while os.listdir(tmp_path / "tmp"):
        await running.ask("GET", "/health")


async def test_without_its_option_the_option_is_named() -> None:
    async with serving() as served, client_of(served) as client:
        for ask in (client.files.list, client.batches.list):
            with pytest.raises(openai.NotFoundError, match="without --files-dir"):
                await ask()
