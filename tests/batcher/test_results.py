"""The files that a batch ends with; and what deaths leave on the way."""

from __future__ import annotations

from pathlib import Path

from actorserve.actors.batcher.results import publish_lines
from actorserve.actors.files.batches import ERRORS, OUTPUT
from tests.batcher.scene import Scene, line
from tests.files.deaths import dies
from tests.files.test_store import BATCH, OWNER


def written(path: Path) -> Scene:
    scene = Scene(path, line("a"))
    (scene.store.place(BATCH) / OUTPUT).write_text("one\n")
    (scene.store.place(BATCH) / ERRORS).write_text("")
    return scene


def test_lines_become_a_file_once(tmp_path: Path) -> None:
    scene = written(tmp_path)
    folder, request = scene.store.folder, scene.batch.request
    file_id = publish_lines(folder, request, OUTPUT)
    assert file_id is not None and scene.files.content(file_id).read_text() == "one\n"
    assert publish_lines(folder, request, OUTPUT) == file_id and publish_lines(folder, request, ERRORS) is None
    found = scene.files.find(file_id, OWNER)
    assert found is not None and found.size == 4 and len(scene.files.all(OWNER)) == 2


def test_a_death_on_the_way_loses_nothing(tmp_path: Path) -> None:
    calls = 0
    while dies_at(scene := written(tmp_path / str(calls)), calls):
        file_id = publish_lines(scene.store.folder, scene.batch.request, OUTPUT)
        assert file_id is not None and scene.files.content(file_id).read_text() == "one\n", calls
        assert list(scene.store.place(BATCH).glob("output*")) == []
        calls += 1
    assert calls > 5


def dies_at(scene: Scene, calls: int) -> bool:
    return dies(lambda: publish_lines(scene.store.folder, scene.batch.request, OUTPUT), calls)
