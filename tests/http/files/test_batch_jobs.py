"""/v1/batch/jobs, and files as Mistral's clients read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from actorserve.actors.batcher.results import publish_lines
from actorserve.actors.files.batches import MISTRAL, BatchState, BatchStore, LineError
from actorserve.actors.files.folder import Folder
from actorserve.http.openai.batches import jobs
from tests.http.serving import Served

ENDPOINT, PATH = "/v1/chat/completions", "/v1/batch/jobs"
BODY = {"messages": [{"role": "user", "content": "ä"}]}
LINES = b'{"custom_id": "a", "body": {"max_tokens": 3}}\n\n{"body": {"model": "other"}}'


@pytest_asyncio.fixture
async def http(running: Served) -> Any:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=60) as made:
        yield made


async def upload(http: httpx.AsyncClient, content: bytes = LINES, purpose: str = "batch") -> dict[str, Any]:
    answer = await http.post("/v1/files", data={"purpose": purpose}, files={"file": ("in.jsonl", content)})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def begin(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post(PATH, json={"endpoint": ENDPOINT, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def asked(folder: Path, job: dict[str, Any]) -> list[Any]:
    """The lines that the batcher will ask."""
    store = BatchStore(Folder(folder))
    found = store.get(job["id"])
    assert found is not None
    return [json.loads(line) for line in store.input(found.request).read_bytes().splitlines()]


async def test_requests_become_lines_of_a_batch(http: httpx.AsyncClient, tmp_path: Path) -> None:
    requests = [{"custom_id": "x", "body": BODY}, {"body": {"model": "other"}}]
    job = await begin(http, requests=requests, model="m", metadata={"job": "x"}, timeout_hours=2)
    assert job["id"].startswith(MISTRAL) and (job["object"], job["status"]) == ("batch", "QUEUED")
    assert (job["input_files"], job["model"], job["metadata"]) == ([], "m", {"job": "x"})
    same = {"method": "POST", "url": ENDPOINT}
    assert asked(tmp_path, job) == [
        {"custom_id": "x", "body": BODY | {"model": "m"}, **same},
        {"custom_id": f"{job['id']}-1", "body": {"model": "m"}, **same},
    ]
    found = BatchStore(Folder(tmp_path)).get(job["id"])
    assert found is not None and found.request.expires_at == found.request.created_at + 7200
    assert (await http.get(f"{PATH}/{job['id']}")).json() == job


async def test_the_lines_of_all_its_files_are_brought_along(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PIECE", 10)
    files = [await upload(http), await upload(http, b'{"custom_id": "b", "body": {}}\n')]
    job = await begin(http, input_files=[one["id"] for one in files])
    assert [(line["custom_id"], line["body"]) for line in asked(tmp_path, job)] == [
        ("a", {"max_tokens": 3}),
        (f"{job['id']}-1", {"model": "other"}),
        ("b", {}),
    ]
    for one in files:
        assert (await http.delete(f"/v1/files/{one['id']}")).status_code == 200, "nobody reads it any more"


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({}, "input_files", 400),
        ({"requests": []}, "input_files", 400),
        ({"requests": [{"body": {}}], "input_files": ["file-x"]}, "input_files", 400),
        ({"input_files": ["file-x"]}, "input_files[0]", 404),
        ({"requests": [{"custom_id": "a"}]}, "requests[0].body", 400),
        ({"requests": [{"body": {}}], "endpoint": "/v1/ocr"}, "endpoint", 400),
        ({"requests": [{"body": {}}], "agent_id": "x"}, "agent_id", 400),
        ({"requests": [{"body": {}}], "timeout_hours": 0}, "timeout_hours", 400),
    ],
)
async def test_what_cannot_be_is_told(
    http: httpx.AsyncClient, tmp_path: Path, fields: dict[str, Any], param: str, status: int
) -> None:
    answer = await http.post(PATH, json={"endpoint": ENDPOINT, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert not BatchStore(Folder(tmp_path)).all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"custom_id": "b"}', "body is missing"),
        (b'{"body": {"x": ' + b"[" * 40_000 + b"]" * 40_000 + b"}}", "The line is nested too deeply"),
        (b'{"body": {"x": "\xff"}}', "The line is not UTF-8"),
        (b"{", "The line is not valid JSON"),
    ],
)
async def test_a_line_that_is_no_request_is_named(
    http: httpx.AsyncClient, tmp_path: Path, line: bytes, said: str
) -> None:
    file = await upload(http, b'{"body": {}}\n\n' + line + b"\n")
    answer = await http.post(PATH, json={"endpoint": ENDPOINT, "input_files": [file["id"]]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input_files[0]")
    assert f"input_files[0]: line 3: {said}" in error["message"]
    assert not BatchStore(Folder(tmp_path)).all()


async def test_a_body_may_have_line_breaks(http: httpx.AsyncClient, tmp_path: Path) -> None:
    body = {"endpoint": ENDPOINT, "requests": [{"custom_id": "a", "body": BODY}, {"custom_id": "b", "body": BODY}]}
    answer = await http.post(PATH, content=json.dumps(body, indent=2), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert [(one["custom_id"], one["body"]) for one in asked(tmp_path, answer.json())] == [("a", BODY), ("b", BODY)]


async def test_names_that_are_made_up_are_none_of_the_clients(http: httpx.AsyncClient, tmp_path: Path) -> None:
    requests = [{"custom_id": "1", "body": BODY}, {"body": BODY}, {"body": BODY}, {"custom_id": "2", "body": BODY}]
    names = [one["custom_id"] for one in asked(tmp_path, await begin(http, requests=requests))]
    assert len({*names}) == 4 and (names[0], names[3]) == ("1", "2")


async def test_how_far_it_is_and_what_has_come_of_it(http: httpx.AsyncClient, tmp_path: Path) -> None:
    store, job = BatchStore(Folder(tmp_path)), await begin(http, requests=[{"body": BODY}] * 3)
    found = store.get(job["id"])
    assert found is not None
    lines = [{"custom_id": name, "response": {"status_code": 200, "body": {}}} for name in "01"]
    store.answers(job["id"])[0].write_text("".join(json.dumps(line) + "\n" for line in lines))
    file_id = publish_lines(store.folder, found.request, "output.jsonl")
    done = BatchState(status="completed", total=3, completed=2, failed=1, ended_at=7, output_file_id=file_id, model="m")
    store.save(job["id"], done)
    told = (await http.get(f"{PATH}/{job['id']}", params={"inline": "true"})).json()
    counts = {"total_requests": 3, "completed_requests": 3, "succeeded_requests": 2, "failed_requests": 1}
    assert counts.items() <= told.items() and (told["status"], told["completed_at"]) == ("SUCCESS", 7)
    assert told["outputs"] == lines and told["output_file"] == file_id
    result = (await http.get(f"/v1/files/{file_id}")).json()
    assert (result["sample_type"], result["source"], result["num_lines"]) == ("batch_result", "mistral", 2)
    told_of = [("It is wrong.", None), ("So is this.", 3), ("It is late.", 4), ("So is this.", 5)]
    errors = [LineError("x", message, None, line) for message, line in told_of]
    store.save(job["id"], BatchState(status="failed", errors=errors, ended_at=5))
    assert (await http.get(f"{PATH}/{job['id']}")).json()["errors"] == [
        {"message": "It is wrong.", "count": 1},
        {"message": "line 3: So is this.", "count": 2},
        {"message": "line 4: It is late.", "count": 1},
    ]


async def test_jobs_are_listed_by_pages_and_apart_from_batches(http: httpx.AsyncClient, tmp_path: Path) -> None:
    names = [(await begin(http, requests=[{"body": BODY}], model=f"m{number}"))["id"] for number in range(3)]

    async def listed(**query: Any) -> tuple[list[str], int]:
        answer = await http.get(PATH, params=query)
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["data"]], answer.json()["total"]

    assert await listed() == (names[::-1], 3)
    assert await listed(page=1, page_size=2, order_by="created") == (names[2:], 3)
    assert await listed(model="m1") == ([names[1]], 1)
    BatchStore(Folder(tmp_path)).save(names[0], BatchState(status="in_progress"))
    assert await listed(status=["RUNNING", "SUCCESS"]) == ([names[0]], 1)
    assert (await listed(created_after="2001-01-01T00:00:00Z"))[1] == 3
    assert (await listed(created_after="2101-01-01T00:00:00"))[1] == 0
    assert (await http.get(PATH, params={"status": "DONE"})).json()["error"]["param"] == "status[0]"
    assert not (await http.get("/v1/batches")).json()["data"]
    assert (await http.get(f"/v1/batches/{names[0]}")).status_code == 404


async def test_a_job_is_cancelled_and_removed_once_it_has_ended(http: httpx.AsyncClient, tmp_path: Path) -> None:
    job = await begin(http, requests=[{"body": BODY}])
    path = f"{PATH}/{job['id']}"
    assert (await http.delete(path)).status_code == 409
    for _ in range(2):
        assert (await http.post(f"{path}/cancel")).json()["status"] == "CANCELLATION_REQUESTED"
    BatchStore(Folder(tmp_path)).save(job["id"], BatchState(status="cancelled", ended_at=3))
    assert (await http.post(f"{path}/cancel")).json()["status"] == "CANCELLED"
    assert (await http.delete(path)).json() == {"id": job["id"], "object": "batch", "deleted": True}
    assert (await http.get(path)).status_code == (await http.post(f"{path}/cancel")).status_code == 404
    done = await begin(http, requests=[{"body": BODY}])
    BatchStore(Folder(tmp_path)).save(done["id"], BatchState(status="completed", ended_at=3))
    assert (await http.post(f"{PATH}/{done['id']}/cancel")).status_code == 409


async def test_a_request_that_is_sent_again_begins_one_job(http: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "once"}
    body = {"endpoint": ENDPOINT, "requests": [{"body": BODY}]}
    first, again = [(await http.post(PATH, json=body, headers=key)).json() for _ in range(2)]
    assert first == again
    for other in ({"model": "m"}, {"metadata": {"a": "b"}}, {"timeout_hours": 2}):
        assert (await http.post(PATH, json={**body, **other}, headers=key)).status_code == 422, other


async def test_files_with_other_lines_are_another_request(http: httpx.AsyncClient) -> None:
    sent = {"Idempotency-Key": "file"}
    answers = []
    for content in (b'{"body": {}}\n', b'{"body": {"n": 1}}\n'):
        file = await http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}, headers=sent
        )
        answers.append(
            await http.post(PATH, json={"endpoint": ENDPOINT, "input_files": [file.json()["id"]]}, headers=sent)
        )
        assert (await http.delete(f"/v1/files/{file.json()['id']}")).status_code == 200
    assert [answer.status_code for answer in answers] == [200, 422]


async def test_a_file_need_not_say_what_it_is_for(http: httpx.AsyncClient, tmp_path: Path) -> None:
    answer = await http.post("/v1/files", files={"file": ("in.jsonl", LINES)})
    assert (answer.status_code, answer.json().get("purpose")) == (200, "user_data"), answer.text
    assert len(asked(tmp_path, await begin(http, input_files=[answer.json()["id"]]))) == 2
    for purpose in ("ocr", "audio"):
        assert (await upload(http, b"x", purpose))["purpose"] == purpose
    for wrong in ("", "nothing"):
        answer = await http.post("/v1/files", data={"purpose": wrong}, files={"file": ("in.jsonl", LINES)})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")


async def test_files_as_mistrals_clients_read_them(http: httpx.AsyncClient) -> None:
    made = [await upload(http), await upload(http, b"a\nb\n", "fine-tune"), await upload(http, b"")]
    assert [(one["num_lines"], one["sample_type"], one["source"]) for one in made] == [
        (3, "batch_request", "upload"),
        (2, "instruct", "upload"),
        (0, "batch_request", "upload"),
    ]
    page = (await http.get("/v1/files", params={"page": 0, "page_size": 2})).json()
    assert ([one["id"] for one in page["data"]], page["total"]) == ([made[2]["id"], made[1]["id"]], 3)
    both: dict[str, Any] = {"sample_type": "instruct", "source": ["upload", "mistral"], "page": 0}
    for query in ({"sample_type": "instruct"}, both):
        found = (await http.get("/v1/files", params=query)).json()["data"]
        assert [one["id"] for one in found] == [made[1]["id"]]
    assert not (await http.get("/v1/files", params={"source": "mistral"})).json()["data"]
    assert len((await http.get("/v1/files", params={"search": "in.js"})).json()["data"]) == 3
