"""Recordings of scheduler actors over several lives, and what their replay makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actorserve.actors.cli import main
from actorserve.actors.protocol.messages import Admit, Cancel, Finish, StepFailed, Stopped, WorkerReady
from actorserve.actors.scheduler.batch import RunningBatch
from actorserve.actors.scheduler.policy.prompt_chunks import PromptChunks
from actorserve.actors.scheduler.replay.file import Reading, Record, RecordedTurn
from actorserve.actors.scheduler.replay.replayer import Difference, Replay
from actorserve.actors.scheduler.scheduler import Scheduler
from tests.support.selection import slow

from .recorded import BLOCKS, Life, Load, recorded, replayed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording"


OPTIONS: list[dict[str, Any]] = [
    {},
    {"scheduling_policy": "priority"},
    {"enable_prefix_caching": False},
    {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}', "target_itl_ms": 0.4},
    {"step_s": 0.025},  # so long that plans wait
]


@pytest.mark.parametrize("seed", [*slow(0, 1, 2), 3, 4])
def test_every_plan_again(path: Path, seed: int) -> None:
    load = recorded(path, seed, 1400, **OPTIONS[seed])
    replay = replayed(path)
    turns = [record for record in Reading(str(path)) if isinstance(record, RecordedTurn)]
    assert replay.plans == sum(len(turn.plans) for turn in turns) > 50
    assert replay.sections > 2 and load.preemptions and not replay.deaths
    wanted = {Finish.LENGTH, Finish.ABORT, Finish.STOP_STRING, Finish.REJECTED, Finish.STOP}
    assert wanted <= set(load.finishes), "the load has not had everything"
    seen = {type(message) for turn in turns for message in turn.messages}
    assert {Cancel, Stopped, StepFailed, WorkerReady, Admit} <= seen
    held = {len(turn.plans) for turn in turns if turn.held}
    assert held == ({0, 1} if "step_s" in OPTIONS[seed] else set())


def test_answers_are_those_of_the_recording(path: Path) -> None:
    load = Load(path, 5)
    load.run(200, deaths=False)
    logs = {ref: load.table.generated(ref) for ref in load.requests}
    load.close()
    histories = replayed(path).statistics.histories
    assert logs and {ref: len(histories[ref].answer) for ref in logs if ref in histories} == logs


def test_ends_are_told_when_they_were(path: Path) -> None:
    """One waits for a step that a group of workers computes, until that is gone."""
    load = Load(path, 5, tensor_parallel_size=2)
    workers = load.memory.system.workers_of(0)
    for worker in workers:
        load.memory.raise_incarnation(worker)
    load.turn(WorkerReady(load.memory.board.incarnation(workers[0].position), BLOCKS))
    ref = load.open()
    load.turn(Admit([ref]))
    load.table.cancel(ref)
    load.turn(Cancel([ref]))
    load.turn(Admit([load.open()]))
    assert not load.finishes
    load.memory.raise_incarnation(workers[1])
    load.turn()
    assert load.finishes == [Finish.ABORT]
    load.close()
    replay, told = Replay(), []

    def watched() -> Iterator[Record]:
        for record in Reading(str(path)):
            yield record
            assert replay._memory is not None
            told.append(replay._memory.table.finish(ref))

    replay.run(watched())
    assert told[-3:] == [0, 0, Finish.ABORT]


def test_a_change_of_the_planner_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(path, 1)
    chunks = PromptChunks.of_rows

    def greedy(own: PromptChunks, left: int) -> Any:
        return chunks(own, left - 1)

    monkeypatch.setattr(PromptChunks, "of_rows", greedy)
    with pytest.raises(Difference, match=r"plan \d+ \(section \d+, turn \d+\) is not the recorded one\n  recorded: st"):
        replayed(path)


def test_other_blocks_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and counts are alike then."""
    recorded(path, 1)
    monkeypatch.setattr("actorserve.actors.scheduler.memory.allocation.NUM_SPARE_BLOCKS", 0)
    with pytest.raises(Difference):
        replayed(path)


def test_a_missing_message_is_found(path: Path) -> None:
    recorded(path, 2, deaths=False)
    records = list(Reading(str(path)))
    done = next(
        at for at, record in enumerate(records) if isinstance(record, RecordedTurn) and record.plans and at > 100
    )
    turn = records[done]
    assert isinstance(turn, RecordedTurn)
    records[done] = msgspec.structs.replace(turn, messages=turn.messages[:-1])
    with pytest.raises(Difference):
        Replay().run(records)


def test_a_fault_of_the_scheduler_comes_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the file with the messages that led to it."""
    place = RunningBatch.place

    def faulty(batch: RunningBatch, sequence: Any, *where: int) -> int:
        if sequence.num_prompt_tokens == 33:
            raise ZeroDivisionError("a planted fault")
        return place(batch, sequence, *where)

    monkeypatch.setattr(RunningBatch, "place", faulty)
    load = Load(path, 6)
    with pytest.raises(ZeroDivisionError):
        load.run(1000, deaths=False)
    load.life.file.close()
    replay = replayed(path)
    assert replay.deaths == ["ZeroDivisionError('a planted fault')"] and replay.plans > 5
    monkeypatch.setattr(RunningBatch, "place", place)
    with pytest.raises(Difference, match=r"now: no error|recorded: none"):
        replayed(path)


def test_a_request_that_killed_schedulers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was in hand decides whether it is tried again."""
    load = Load(path, 7)
    deadly, admit = load.open(), Scheduler.admit

    def dies(scheduler: Scheduler, ref: int) -> None:
        if ref == deadly:
            raise MemoryError("as if it were killed")
        admit(scheduler, ref)

    monkeypatch.setattr(Scheduler, "admit", dies)
    with pytest.raises(MemoryError):
        load.turn(Admit([deadly]))
    load.life.file.close()
    load.life.context.close()
    for _ in range(2):
        load.memory.raise_incarnation(load.memory.system.by_name["scheduler"])
        with pytest.raises(MemoryError):
            Life(load.memory, path)
    load.memory.raise_incarnation(load.memory.system.by_name["scheduler"])
    load.life = Life(load.memory, path)
    load.turn()
    load.close()
    assert load.finishes == [Finish.ERROR]
    assert len(replayed(path).deaths) == 3


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It is only read."""
    path = tmp_path_factory.mktemp("compared") / "recording"
    recorded(path, 8, 400, deaths=False, max_num_queued_reqs=100)
    return path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["replay", *words, "--json"]) == 0
    answer: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
    return answer


def test_policies_are_compared(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = told(capsys, str(compared))
    assert same["equal"] and "other" not in same
    few = told(capsys, str(compared), "--max-num-seqs", "1")
    assert few["other"]["preemptions"] == 0 < few["simulated"]["preemptions"]
    assert few["other"]["tokens_a_step"] < few["simulated"]["tokens_a_step"]
    assert few["other"]["mean_queue_s"] > few["simulated"]["mean_queue_s"]
    room = told(capsys, str(compared), "--blocks", "150")
    assert room["other"]["preemptions"] == 0 and room["other"]["most_kv_use"] < few["simulated"]["most_kv_use"]
    plain = told(capsys, str(compared), "--no-enable-prefix-caching")
    assert plain["other"]["tokens"] > plain["simulated"]["tokens"]


def test_priorities_change_who_waits(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, str(compared), "--policy", "priority")
    assert found["other"] != found["simulated"] and found["other"]["requests"] == found["simulated"]["requests"]
    again = told(capsys, str(compared), "--policy", "priority")
    assert again["other"] == found["other"], "a simulation is a function of the file and the options"


def test_the_command(compared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["replay", str(compared), "--until", "9", "--print-plans"]) == 0
    out = capsys.readouterr().out
    assert "plan 9: step 9, " in out and "plan 12:" not in out and "are equal" in out
    assert main(["replay", str(compared), "--policy", "priority", "--max-num-batched-tokens", "64"]) == 0
    out = capsys.readouterr().out
    assert "time to first token, p99" in out and "a step takes" in out
    stops: list[int] = []
    monkeypatch.setattr("pdb.set_trace", lambda: stops.append(1))
    assert main(["replay", str(compared), "--break", "5", "--until", "20"]) == 0 and stops == [1]
    monkeypatch.setattr("actorserve.actors.scheduler.scheduler.STEPS_AHEAD", 1)
    capsys.readouterr()
    assert main(["replay", str(compared)]) == 1
    assert "is not the recorded one" in capsys.readouterr().out


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "text").write_text("hello, I am a text")
    assert main(["replay", str(tmp_path / "text")]) == 2
    assert "is no recording" in capsys.readouterr().err


def test_options_that_cannot_be(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--blocks", "0"], "--blocks: 0"),
        (["--blocks", "1"], "too few blocks"),
    ):
        assert main(["replay", str(compared), *words]) == 2
        assert said in capsys.readouterr().err
