"""One of Anthropic's batches from its beginning to its end: each of its requests has a result, whoever dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from actorserve.actors.batcher import batch_run
from actorserve.actors.batcher.asking import Asker
from actorserve.actors.batcher.batch_run import BatchRun, Limits
from actorserve.actors.batcher.memory import LineMemory
from actorserve.actors.batcher.message_results import message_result
from actorserve.actors.files.batches import BatchRequest, BatchStore
from actorserve.actors.files.folder import Folder
from actorserve.actors.files.lines import Request, answer_line
from actorserve.actors.files.store import FileStore
from tests.batcher.scene import LONGEST, FakeAsker, OneBatch
from tests.files.deaths import dies
from tests.files.test_store import OWNER

BATCH = f"msgbatch_{'5' * 24}"
NAMES = [f"r{number}" for number in range(6)]


def line(name: str) -> bytes:
    asked = {"custom_id": name, "method": "POST", "url": "/v1/messages", "body": {"model": name}}
    return json.dumps(asked).encode() + b"\n"


OF_OTHERS = ("<html>", {"error": "text"}, {"error": None}, {"error": {"code": 1}}, {"error": {"message": 1}}, None, [1])


class Scene(OneBatch):
    """The batch of these requests."""

    id = BATCH

    def __init__(self, folder: Path, names: list[str], expires_s: int = 1000) -> None:
        self.files = FileStore(Folder(folder), 1 << 30)
        self.store = BatchStore(self.files.folder)
        now = int(time.time())
        request = BatchRequest(
            id=BATCH,
            endpoint="/v1/messages",
            input_file_id="",
            completion_window="24h",
            created_at=now,
            expires_at=now + expires_s,
            owner=OWNER,
            order=1,
            total=len(names),
        )
        upload = self.files.upload_batch(BATCH)
        try:
            upload.begin()
            upload.write(b"".join(map(line, names)))
            upload.keep_as_batch(request)
        finally:
            upload.drop()

    @property
    def results(self) -> dict[str, Any]:
        """By their custom_ids; each is there once."""
        lines = [one for path in self.store.answers(BATCH) for one in path.read_text().splitlines()]
        found = {one["custom_id"]: one["result"] for one in map(json.loads, lines)}
        assert len(found) == len(lines)
        return found

    @property
    def kinds(self) -> Counter[str]:
        return Counter(one["type"] for one in self.results.values())

    def run(self, asker: FakeAsker | None = None, most: int = 2) -> BatchRun:
        limits = Limits(LONGEST, most, LineMemory(1 << 20))
        return BatchRun(self.store, cast(Asker, asker or FakeAsker()), self.batch, limits, bool)


async def test_each_request_has_a_result(tmp_path: Path) -> None:
    """Of any models; its results stay where they are, and are no file of its owner."""
    scene = Scene(tmp_path, [*NAMES, "bad"])
    await scene.run().run()
    state = scene.state
    assert (state.status, state.total, state.completed, state.failed) == ("completed", 7, 6, 1)
    assert scene.results.keys() == {*NAMES, "bad"} and scene.kinds == {"succeeded": 6, "errored": 1}
    assert scene.results["r1"] == {"type": "succeeded", "message": "r1"}
    assert scene.files.all(OWNER) == [] and state.output_file_id is None


@pytest.mark.parametrize(("expires_s", "kind"), [(-5, "expired"), (1000, "canceled")])
async def test_what_is_not_asked_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires_s: int, kind: str
) -> None:
    monkeypatch.setattr(batch_run, "TOGETHER", 4)
    scene, asker = Scene(tmp_path, NAMES, expires_s), FakeAsker()
    run = scene.run(asker)
    if kind == "canceled":
        run.cancel()
    await run.run()
    state = scene.state
    assert not asker.asked and scene.results == {name: {"type": kind} for name in NAMES}
    assert (state.failed, state.expired, state.cancelled) == (6, 6 * (kind == "expired"), 6 * (kind == "canceled"))


@pytest.mark.parametrize("torn", [False, True])
async def test_where_it_cannot_go_on_each_request_has_a_result(tmp_path: Path, torn: bool) -> None:
    """As far as its lines can be read."""
    scene = Scene(tmp_path, NAMES)
    if torn:
        path = scene.store.input(scene.batch.request)
        path.write_bytes(path.read_bytes().replace(line("r4"), b"{\n"))

    class Broken(FakeAsker):
        async def ask(self, batch: BatchRequest, number: int, line: Request) -> dict[str, Any]:
            if line.custom_id == "r2":
                self.open.clear()  # those behind it are broken off
                raise ValueError("broken")
            return await super().ask(batch, number, line)

    run = scene.run(Broken(), most=1)
    with pytest.raises(ValueError, match="broken") as raised:
        await run.run()
    await run.fail(raised.value)
    told = [name for name, one in scene.results.items() if one["type"] == "errored"]
    assert sorted(told) == (["r2", "r3"] if torn else ["r2", "r3", "r4", "r5"])
    assert {scene.results[name]["error"]["error"]["type"] for name in told} == {"api_error"}
    assert (scene.state.status, scene.state.completed, scene.state.failed) == ("failed", 2, len(told))


async def test_what_is_cancelled_keeps_what_was_asked(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, NAMES), FakeAsker()
    asker.open.clear()
    run = scene.run(asker)
    running = asyncio.create_task(run.run())
    await asker.was_asked(2)
    run.cancel()
    asker.open.set()
    await running
    assert scene.state.status == "cancelled" and scene.kinds == {"succeeded": 2, "canceled": 4}


def test_a_successor_does_the_rest_wherever_it_dies(tmp_path: Path) -> None:
    """What was told of requests that were not asked is counted as that."""
    calls = 0
    while True:
        scene = Scene(tmp_path / str(calls), NAMES[:3])
        cancelled = scene.run()
        cancelled.cancel()
        died = dies(lambda one=cancelled: asyncio.run(one.run()), calls)  # type: ignore[misc]
        again = scene.run()
        again.cancel()
        asyncio.run(again.run())
        assert scene.results == {name: {"type": "canceled"} for name in NAMES[:3]}, calls
        assert (scene.state.status, scene.state.cancelled, scene.state.failed) == ("cancelled", 3, 3), calls
        if not died:
            break
        calls += 1
    assert calls > 10


def test_errors_are_anthropics() -> None:
    """Also those that the batcher, or who is no server of ours, has told."""
    own = {"type": "error", "error": {"type": "not_found_error", "message": "no"}, "request_id": "x"}
    openais = {"error": {"message": "no", "type": "t", "param": None, "code": None}}
    for body, error in (
        (own, own),
        (openais, {"type": "invalid_request_error", "message": "no"}),
        *((body, {"type": "invalid_request_error", "message": str(body)}) for body in OF_OTHERS),
    ):
        answer = answer_line("a", {"status_code": 404, "request_id": "x", "body": body}, None)
        expected = error if body is own else {"request_id": None, "type": "error", "error": error}
        assert message_result(answer) == {"custom_id": "a", "result": {"type": "errored", "error": expected}}
    too_long = message_result(answer_line("a", None, {"code": "line_too_long", "message": "long"}))["result"]
    assert too_long["type"] == "errored" and too_long["error"]["error"]["message"] == "long"
