"""/v1/batches by OpenAI's own client: begun, listed, looked at, cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from actorserve.actors.files.batches import BatchState, BatchStore, LineError
from actorserve.actors.files.folder import Folder
from actorserve.actors.files.owner import Owner, write_key
from actorserve.http.generation.idempotency_keys import client_of as client_name
from tests.http.files.scene import LINES, SECRET, client_of, delete_before_cancelling, files_served


async def begin(client: AsyncOpenAI, **fields: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return await client.batches.create(**(asked | fields))


async def test_a_batch_is_begun_and_found(client: AsyncOpenAI, tmp_path: Path) -> None:
    made = await begin(client, metadata={"job": "x"})
    assert made.id.startswith("batch_") and made.object == "batch" and made.status == "validating"
    assert made.expires_at == made.created_at + 24 * 3600 and made.metadata == {"job": "x"}
    assert made.errors is None and made.in_progress_at is None
    assert made.request_counts is not None and made.request_counts.total == 0
    assert await client.batches.retrieve(made.id) == made
    state = BatchState(
        status="completed", total=3, completed=2, failed=1, ended_at=7, output_file_id="file-x", model="m"
    )
    BatchStore(Folder(tmp_path)).save(made.id, state)
    found = await client.batches.retrieve(made.id)
    assert (found.status, found.completed_at, found.failed_at, found.output_file_id) == ("completed", 7, None, "file-x")
    assert found.request_counts is not None and found.request_counts.failed == 1


async def test_errors_of_lines_are_told(client: AsyncOpenAI, tmp_path: Path) -> None:
    made = await begin(client)
    errors = [LineError("duplicate_custom_id", "It is there twice.", "custom_id", 2)]
    BatchStore(Folder(tmp_path)).save(made.id, BatchState(status="failed", errors=errors, ended_at=5))
    found = await client.batches.retrieve(made.id)
    assert found.failed_at == 5 and found.errors is not None and found.errors.data is not None
    (error,) = found.errors.data
    assert (error.code, error.line, error.param) == ("duplicate_custom_id", 2, "custom_id")


async def test_batches_are_listed_the_newest_first(client: AsyncOpenAI) -> None:
    names = [(await begin(client)).id for _ in range(3)]
    assert [one.id async for one in client.batches.list(limit=2)] == names[::-1]
    page = await client.batches.list(limit=2)
    assert page.has_more and [one.id for one in page.data] == names[:0:-1]


async def test_a_batch_is_cancelled_until_it_has_ended(client: AsyncOpenAI, tmp_path: Path) -> None:
    made = await begin(client)
    cancelled = await client.batches.cancel(made.id)
    assert cancelled.status == "cancelling" and cancelled.cancelling_at is not None
    BatchStore(Folder(tmp_path)).save(made.id, BatchState(status="cancelled", ended_at=1))
    assert (await client.batches.cancel(made.id)).status == "cancelled"  # sent again, it has what it wanted
    BatchStore(Folder(tmp_path)).save(made.id, BatchState(status="completed", ended_at=1))
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        await client.batches.cancel(made.id)


async def test_one_that_is_removed_as_it_is_cancelled_is_not_there(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await begin(client)
    delete_before_cancelling(monkeypatch)
    with pytest.raises(openai.NotFoundError, match=f"No batch found with id '{made.id}'"):
        await client.batches.cancel(made.id)


async def test_what_a_batch_reads_cannot_be_deleted(client: AsyncOpenAI, tmp_path: Path) -> None:
    made = await begin(client)
    with pytest.raises(openai.ConflictError, match=f"is read by {made.id}"):
        await client.files.delete(made.input_file_id)
    BatchStore(Folder(tmp_path)).save(made.id, BatchState(status="completed"))
    assert (await client.files.delete(made.input_file_id)).deleted


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint must be one of /v1/chat/completions, "),
        ({"completion_window": "1d"}, "completion_window"),
        ({"metadata": {"x": "y" * 600}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
async def test_what_cannot_be_is_refused(client: AsyncOpenAI, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        await begin(client, **fields)
    assert (await client.batches.list()).data == []


async def test_its_input_must_be_there_and_for_a_batch(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="No such File object: file-none"):
        await begin(client, input_file_id="file-none")
    other = await client.files.create(file=("a", LINES), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="purpose user_data"):
        await begin(client, input_file_id=other.id)
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_none'"):
        await client.batches.retrieve("batch_none")


async def test_the_same_request_once_more_begins_no_second(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    key = {"Idempotency-Key": "k"}
    first = await begin(client, input_file_id=file.id, extra_headers=key)
    assert await begin(client, input_file_id=file.id, extra_headers=key) == first
    with pytest.raises(openai.UnprocessableEntityError):
        await begin(client, input_file_id=file.id, completion_window="2h", extra_headers=key)
    assert len((await client.batches.list()).data) == 1


async def test_of_two_at_once_with_one_key_the_other_is_refused(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither had found a batch when it looked."""
    key = {"Idempotency-Key": "k"}
    file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    await begin(client, input_file_id=file.id, extra_headers=key)
    monkeypatch.setattr(BatchStore, "find", lambda *_: None)
    with pytest.raises(openai.UnprocessableEntityError, match="was used for a request with another body"):
        await begin(client, input_file_id=file.id, completion_window="2h", extra_headers=key)


async def test_a_full_disk_is_told(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    made = await begin(client)
    for name, ask in (("create", begin(client)), ("cancel", client.batches.cancel(made.id))):
        monkeypatch.setattr(BatchStore, name, full)
        with pytest.raises(openai.APIStatusError, match="disk of --files-dir is full") as raised:
            await ask
        assert raised.value.status_code == 507


async def test_other_clients_do_not_find_it(tmp_path: Path) -> None:
    async with files_served(tmp_path, api_keys=["one", "two"]) as served:
        async with client_of(served, "one") as one, client_of(served, "two") as two:
            made = await begin(one)
            assert (await two.batches.list()).data == []
            for ask in (two.batches.retrieve, two.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    await ask(made.id)
            with pytest.raises(openai.NotFoundError, match="No such File object"):
                await begin(two, input_file_id=made.input_file_id)


async def test_the_batcher_asks_as_the_owner_as_long_as_his_key_is_one(tmp_path: Path) -> None:
    async with files_served(tmp_path, api_keys=["one"]) as served:
        async with client_of(served, "one") as client:
            made = await begin(client)
        for owner, secret, status in (
            (Owner(client_name(b"one")), SECRET, 200),
            (Owner(client_name(b"one")), b"t" * 32, 401),
            (Owner(client_name(b"gone")), SECRET, 401),
            (Owner(client_name(b"one"), "account"), SECRET, 401),
            (Owner(), SECRET, 401),
        ):
            key = f"Bearer {write_key(owner, secret)}"
            answer = await served.ask("GET", f"/v1/batches/{made.id}", Authorization=key)
            assert answer.status == status, owner
