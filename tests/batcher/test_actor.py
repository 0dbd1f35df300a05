"""The batcher: which batches it looks for, and that one that fails ends alone."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actorserve.actors.batcher import actor as module
from actorserve.actors.batcher.actor import BatcherActor
from actorserve.actors.files.batches import BatchState
from actorserve.actors.files.store import InUse
from actorserve.actors.options.config import make_config
from actorserve.actors.runtime.process import Context
from actorserve.actors.telemetry.gauges import BatcherGauge
from tests.batcher.scene import LONGEST, FakeAsker, Scene, line
from tests.batcher.test_message_batches import BATCH as MESSAGE_BATCH
from tests.batcher.test_message_batches import Scene as MessageScene
from tests.files.test_store import BATCH, ID


class Status:
    """Of the board."""

    def __init__(self) -> None:
        self.gauges: dict[BatcherGauge, int] = {}

    def add(self, gauge: BatcherGauge, count: int) -> None:
        self.gauges[gauge] = self.gauges.get(gauge, 0) + count


class Batcher(BatcherActor):
    """One whose lines are answered by a fake; `failures`: of its tasks."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.status = Status()
        context = SimpleNamespace(
            config=make_config({"files_dir": str(folder), **options}),
            system=SimpleNamespace(max_num_seqs=8, files=SimpleNamespace(body_bytes=LONGEST)),
            status=self.status,
            log=logging.getLogger("batcher"),
        )
        super().__init__(cast(Context, context))
        self.fake = FakeAsker()
        self._asker = cast(Any, self.fake)
        self._loop = asyncio.get_running_loop()
        self.failures: list[BaseException] = []
        self._loop.set_exception_handler(lambda _, about: self.failures.append(about["exception"]))

    async def look(self) -> None:
        """Once, and until all that it has begun has ended."""
        await self._look()
        await self.until_done()

    async def until_done(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)
        assert not self.failures


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, line("a") + line("b"))


async def test_a_batch_is_answered(scene: Scene, tmp_path: Path) -> None:
    batcher = Batcher(tmp_path)
    await batcher.look()
    assert scene.state.status == "completed" and batcher.status.gauges[BatcherGauge.COMPLETED] == 1
    await batcher.look()
    assert len(batcher.fake.asked) == 2


@pytest.mark.parametrize(("days", "is_there"), [(1, False), (3, True), (0, True)])
async def test_a_batch_that_ended_long_ago_is_removed(scene: Scene, tmp_path: Path, days: int, is_there: bool) -> None:
    ended_at = int(time.time()) - 2 * 24 * 3600
    scene.store.save(BATCH, BatchState(status="completed", ended_at=ended_at))
    os.utime(scene.store.place(BATCH) / "state.json", (ended_at, ended_at))
    batcher = Batcher(tmp_path, batch_retention_days=days)
    await batcher.look()
    assert (scene.store.get(BATCH) is not None) is is_there
    await batcher.look()
    assert set(batcher._ended) == ({BATCH} if is_there else set())


@pytest.mark.parametrize("looks", [1, 2])
async def test_one_that_is_removed_and_sent_again_begins_again(tmp_path: Path, looks: int) -> None:
    """It has the id of the one before where its Idempotency-Key is the same, and no look may have missed that."""
    scene, batcher = MessageScene(tmp_path, ["a"]), Batcher(tmp_path)
    for _ in range(looks):
        await batcher.look()
    scene.store.delete(MESSAGE_BATCH)
    again = MessageScene(tmp_path, ["b", "c"])
    await batcher.look()
    assert again.state.status == "completed" and again.results.keys() == {"b", "c"}


async def test_what_an_older_server_has_begun_keeps_its_input(scene: Scene, tmp_path: Path) -> None:
    """It made nothing by which a file's readers are found."""
    (scene.store.folder.files / ID / BATCH).unlink()
    batcher = Batcher(tmp_path)
    batcher.fake.open.clear()
    await batcher._look()
    with pytest.raises(InUse, match=BATCH):
        scene.files.delete(ID)
    batcher.fake.open.set()
    await batcher.until_done()
    assert scene.state.status == "completed"


async def test_an_older_one_whose_input_is_gone_makes_none(scene: Scene, tmp_path: Path) -> None:
    shutil.rmtree(scene.store.folder.files / ID)
    await Batcher(tmp_path).look()
    assert scene.state.status == "failed" and not (scene.store.folder.files / ID).exists()


async def test_batches_that_run_are_not_those_that_wait(scene: Scene, tmp_path: Path) -> None:
    batcher = Batcher(tmp_path)
    batcher.fake.open.clear()
    await batcher._look()
    assert len(batcher._runs) == 1 and batcher._waiting == 0
    batcher.fake.open.set()
    await batcher.until_done()


async def test_one_may_end_as_others_are_looked_at(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(tmp_path)
    batcher.fake.open.clear()
    await batcher._look()
    batcher._runs["batch_other"] = batcher._runs[BATCH]

    async def slow(work: Any, *given: Any) -> Any:
        batcher._runs.pop("batch_other", None)
        return work(*given)

    monkeypatch.setattr(module, "on_disk", slow)
    await batcher._look_for_batches()
    batcher.fake.open.set()
    await batcher.until_done()
    assert scene.state.status == "completed"


@pytest.mark.parametrize("content", [b"{\n", b"\xff\n"])
async def test_what_cannot_be_read_ends_one_batch(scene: Scene, tmp_path: Path, content: bytes) -> None:
    """A line of it was changed since it was looked at; the batcher lives on."""
    scene.store.save(BATCH, BatchState(status="in_progress", total=2))
    with scene.files.content(ID).open("ab") as file:
        file.write(content)
    batcher = Batcher(tmp_path)
    await batcher.look()
    assert scene.state.status == "failed" and batcher.status.gauges[BatcherGauge.FAILED] == 1
    assert [error.code for error in scene.state.errors] == ["internal_error"]


async def test_an_input_that_is_gone_ends_it(scene: Scene, tmp_path: Path) -> None:
    scene.store.save(BATCH, BatchState(status="in_progress", total=2))
    scene.files.content(ID).unlink()
    await Batcher(tmp_path).look()
    assert [error.code for error in scene.state.errors] == ["file_not_found"]


async def test_a_disk_that_fails_for_one_puts_off_no_other(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(tmp_path)
    save = batcher._store.save

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batcher._store, "save", full)
    await batcher.look()
    assert batcher._look_at == 0 and not batcher._runs and scene.state.status == "validating"
    monkeypatch.setattr(batcher._store, "save", save)
    await batcher.look()
    assert batcher._waiting == 1 and scene.state.status == "validating"
    batcher._later[BATCH] = 0.0
    await batcher.look()
    assert scene.state.status == "completed"


async def test_what_is_no_batch_is_left_out(scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once."""
    other = f"batch_{'4' * 24}"
    for name, content in {other: b"{", "lost+found": None, "batch_x": b""}.items():
        os.mkdir(scene.store.folder.batches / name)
        if content is not None:
            (scene.store.folder.batches / name / "request.json").write_bytes(content)
    (scene.store.folder.batches / "file").touch()
    batcher = Batcher(tmp_path)
    await batcher.look()
    await batcher.look()
    assert scene.state.status == "completed" and [one.id for one in scene.store.all()] == [BATCH]
    assert sum("no batch" in one.message for one in caplog.records) == 4
