"""A batch from its beginning to its end, also where its batcher dies in between."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.batcher import batch_run
from actorserve.actors.files.batches import BatchState, NoInput
from tests.batcher.scene import LONGEST, FakeAsker, Scene, line, run_of
from tests.files.deaths import dies
from tests.files.test_store import BATCH, ID, OWNER

NAMES = [f"r{number}" for number in range(9)]
LINES = "".join(map(line, NAMES))


async def test_each_line_is_answered_once(tmp_path: Path) -> None:
    scene, asker, told = Scene(tmp_path, LINES + line("bad"), output_expires_s=3600), FakeAsker(), list[bool]()
    await run_of(scene, asker, counted=told.append).run()
    state = scene.state
    assert (state.status, state.total, state.completed, state.failed, state.model) == ("completed", 10, 9, 1, "m")
    assert state.in_progress_at and state.finalizing_at and state.ended_at
    assert sorted(scene.output) == NAMES and list(scene.errors) == ["bad"]
    assert sorted(asker.asked) == [(number, name) for number, name in enumerate([*NAMES, "bad"], 1)]
    assert sorted(told) == [False] * 9 + [True]
    stored = scene.files.find(state.output_file_id or "", OWNER)
    assert stored is not None and stored.purpose == "batch_output" and stored.filename == f"{BATCH}_output.jsonl"
    assert stored.expires_at == stored.created_at + 3600
    assert sorted(os.listdir(scene.store.place(BATCH))) == ["request.json", "state.json"]


async def test_without_errors_there_is_no_file_of_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path, LINES)
    await run_of(scene).run()
    assert scene.state.error_file_id is None and len(scene.files.all(OWNER)) == 2


async def test_a_file_that_is_none_fails(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, line("a") + line("a")), FakeAsker()
    await run_of(scene, asker).run()
    assert scene.state.status == "failed" and not asker.asked
    assert [error.code for error in scene.state.errors] == ["duplicate_custom_id"]


async def test_a_model_that_is_not_there_fails_before_any_line(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, "\n" + line("a", body={"model": "none"})), FakeAsker()
    await run_of(scene, asker).run()
    assert scene.state.status == "failed" and not asker.asked and scene.state.output_file_id is None
    (error,) = scene.state.errors
    assert (error.code, error.param, error.line) == ("model_not_found", "body.model", 2)
    assert error.message == "There is no such model."


async def test_so_many_lines_are_asked_at_once(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    asker.open.clear()
    running = asyncio.create_task(run_of(scene, asker, most=3).run())
    await asker.was_asked(3)
    for _ in range(20):  # turns in which it would ask more
        await asyncio.sleep(0)
    assert len(asker.asked) == 3
    asker.open.set()
    await running
    assert scene.state.completed == 9


async def test_a_successor_asks_the_rest(tmp_path: Path) -> None:
    """Behind a torn line, of which nobody knows the end."""
    scene = Scene(tmp_path, LINES)
    scene.store.save(BATCH, BatchState(status="in_progress", total=9))
    answer = json.dumps({"custom_id": "r4", "response": {"status_code": 200}})
    (scene.store.place(BATCH) / "output.jsonl").write_text(f'{answer}\n{{"custom_id": "r5", "resp')
    (scene.store.place(BATCH) / "errors.jsonl").write_text(answer.replace("r4", "r6") + "\n\0\0\0\n")
    asker = FakeAsker()
    await run_of(scene, asker).run()
    assert sorted(name for _, name in asker.asked) == [name for name in NAMES if name not in ("r4", "r6")]
    assert sorted([*scene.output, *scene.errors]) == NAMES and list(scene.errors) == ["r6"]
    assert (scene.state.completed, scene.state.failed) == (8, 1)


async def test_what_is_cancelled_begins_no_more(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    asker.open.clear()
    run = run_of(scene, asker, most=2)
    running = asyncio.create_task(run.run())
    await asker.was_asked(2)
    run.cancel()
    asker.open.set()
    await running
    assert scene.state.status == "cancelled" and sorted(scene.output) == ["r0", "r1"] and not scene.errors
    assert (scene.state.total, scene.state.completed) == (9, 2) and len(asker.asked) == 2


async def test_lines_that_do_not_end_do_not_keep_what_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "CANCELLED_S", 0.0)
    scene, asker = Scene(tmp_path, line("r0") + line("r1")), FakeAsker()
    asker.open.clear()
    run = run_of(scene, asker)
    running = asyncio.create_task(run.run())
    await asker.was_asked(2)
    run.cancel()
    await running
    assert scene.state.status == "cancelled" and not scene.output and not scene.errors


async def test_what_is_cancelled_before_it_began_asks_nothing(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    run = run_of(scene, asker)
    run.cancel()
    await run.run()
    assert scene.state.status == "cancelled" and not asker.asked and scene.state.output_file_id is None


async def test_what_is_cancelled_as_its_model_is_asked_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may answer for minutes."""

    async def never(*_: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    scene, asker, asked = Scene(tmp_path, LINES), FakeAsker(), asyncio.Event()
    monkeypatch.setattr(asker, "why_no_model", never)
    run = run_of(scene, asker)
    running = asyncio.create_task(run.run())
    await asked.wait()
    run.cancel()
    await asyncio.wait_for(running, 30)
    assert scene.state.status == "cancelled" and not asker.asked


async def test_what_is_not_answered_in_time_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    run = run_of(scene, asker, most=1)
    add = run._add

    async def close_after_three(output: Any, *answers: dict[str, Any]) -> None:
        await add(output, *answers)
        if len(output.done) == 3:
            asker.open.clear()
            monkeypatch.setattr(asker, "ask", late)

    async def late(*_: object) -> dict[str, Any]:
        deadline.set()
        await asyncio.Event().wait()
        raise AssertionError

    deadline = asyncio.Event()
    timeout = asyncio.timeout(None)
    monkeypatch.setattr(run, "_add", close_after_three)
    monkeypatch.setattr(asyncio, "timeout", lambda _: timeout)
    running = asyncio.create_task(run.run())
    await deadline.wait()
    timeout.reschedule(0)
    await running
    assert scene.state.status == "expired" and scene.state.ended_at
    assert len(scene.output) == 3 and sorted([*scene.output, *scene.errors]) == NAMES
    assert {one["error"]["code"] for one in scene.errors.values()} == {"batch_expired"}
    assert all(one["response"] is None for one in scene.errors.values())
    assert (scene.state.completed, scene.state.failed) == (3, 6)


async def test_time_that_is_over_before_the_beginning(tmp_path: Path) -> None:
    scene, asker = Scene(tmp_path, LINES, expires_s=-5), FakeAsker()
    await run_of(scene, asker).run()
    assert scene.state.status == "expired" and sorted(scene.errors) == NAMES and not asker.asked


async def test_a_disk_that_fails_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, LINES)
    left = [3]

    def write(fd: int, data: bytes | memoryview) -> int:
        written = os.pwrite(fd, bytes(data[:5]), 0) if not left[0] else real(fd, data)
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        return written

    real = os.write
    run = run_of(scene, most=1)
    await run._validate()
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space"):
        await run.run()
    monkeypatch.undo()
    lines = (scene.store.place(BATCH) / "output.jsonl").read_bytes().splitlines(keepends=True)
    assert all(one.endswith(b"\n") and json.loads(one) for one in lines) and len(lines) < 9
    await run_of(scene).run()
    assert scene.state.status == "completed" and sorted(scene.output) == NAMES


async def test_a_full_disk_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try would use the model's time, and lose what it said."""
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    scene.store.save(BATCH, BatchState(status="in_progress", total=9))
    run = run_of(scene, asker)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene.store, "save", full)
    with pytest.raises(OSError, match="No space"):
        await run.run()
    assert not asker.asked


async def test_a_line_that_is_too_long_by_now_is_an_error(tmp_path: Path) -> None:
    """The server was started anew with a smaller --max-body-bytes: it is read as it was then."""
    scene, asker = Scene(tmp_path, line("r0") + line("long", body={"prompt": "x" * 1000}) + line("r1")), FakeAsker()
    scene.store.save(BATCH, BatchState(status="in_progress", total=3, longest=LONGEST))
    await run_of(scene, asker, longest=200).run()
    assert scene.state.status == "completed" and sorted(scene.output) == ["r0", "r1"]
    assert "200 bytes (--max-body-bytes)" in scene.errors["long"]["error"]["message"]
    assert [name for _, name in asker.asked] == ["r0", "r1"]


async def test_the_longest_line_is_that_of_who_looked_at_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, LINES)
    run = run_of(scene, longest=777)
    await run._validate()
    assert scene.state.longest == 777


async def test_lines_wait_for_memory(tmp_path: Path) -> None:
    """One is asked at a time, and all are in the end."""
    scene, asker = Scene(tmp_path, LINES), FakeAsker()
    asker.open.clear()
    running = asyncio.create_task(run_of(scene, asker, memory=10).run())
    await asker.came.wait()
    for _ in range(20):  # turns in which it would ask more
        await asyncio.sleep(0)
    assert len(asker.asked) == 1
    asker.open.set()
    await running
    assert scene.state.completed == 9


@pytest.mark.parametrize("status", ["validating", "in_progress"])
async def test_without_its_input_it_fails(tmp_path: Path, status: str) -> None:
    """What is answered stays."""
    scene = Scene(tmp_path, LINES)
    scene.store.save(BATCH, BatchState(status=status, total=9))
    if status == "in_progress":
        answer = json.dumps({"custom_id": "r4", "response": {"status_code": 200}})
        (scene.store.place(BATCH) / "output.jsonl").write_text(f"{answer}\n")
    scene.files.content(ID).unlink()
    run = run_of(scene)
    with pytest.raises(NoInput) as raised:
        await run.run()
    await run.fail(raised.value)
    assert scene.state.status == "failed" and scene.state.ended_at
    assert [(error.code, error.param) for error in scene.state.errors] == [("file_not_found", "input_file_id")]
    assert list(scene.output) == (["r4"] if status == "in_progress" else []) and not scene.errors
    assert scene.state.completed == len(scene.output)


async def test_what_fails_at_its_end_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, LINES)
    run = run_of(scene)

    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(batch_run, "publish_lines", broken)
    with pytest.raises(ValueError, match="broken") as raised:
        await run.run()
    await run.fail(raised.value)
    assert scene.state.status == "failed" and [error.code for error in scene.state.errors] == ["internal_error"]


@pytest.mark.parametrize("names", [["r0", "r1", "r2"], ["r0", "bad"]])
def test_a_death_at_any_call_answers_no_line_twice(tmp_path: Path, names: list[str]) -> None:
    """And loses none."""
    calls, lines = 0, "".join(map(line, names))
    while dies_at(scene := Scene(tmp_path / str(calls), lines), calls):
        go_through(scene)
        assert scene.state.status == "completed", calls
        assert sorted([*scene.output, *scene.errors]) == sorted(names), calls
        assert scene.state.completed + scene.state.failed == len(names), calls
        calls += 1
    assert calls > 20 and scene.state.status == "completed"


def dies_at(scene: Scene, calls: int) -> bool:
    return dies(lambda: go_through(scene), calls)


def go_through(scene: Scene) -> None:
    async def run() -> None:
        await run_of(scene).run()

    asyncio.run(run())
