"""The file of --record: cut, full, bounded, taken, private."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.scheduler.replay.file import FRAME, MAGIC, Reading, RecordedLife, RecordFile
from actorserve.actors.scheduler.replay.replayer import Replay

from .recorded import Load, recorded, replayed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def test_a_cut_file_is_read_up_to_there(path: Path) -> None:
    recorded(path, 3)
    whole = replayed(path).plans
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, len(MAGIC) + 3):
        path.write_bytes(content[:length])
        reading = Reading(str(path))
        replay = Replay()
        replay.run(reading)
        assert reading.cut and replay.plans < whole


def test_a_damaged_frame_ends_it(path: Path) -> None:
    recorded(path, 3)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    reading = Reading(str(path))
    assert sum(1 for _ in reading) > 0 and reading.cut


def test_a_successor_cuts_off_what_a_death_left(path: Path, tmp_path: Path) -> None:
    load = Load(path, 4)
    load.run(100, deaths=False)
    load.new_scheduler(whole=True)
    with path.open("ab") as file:
        file.write(FRAME.pack(1 << 20, 0, 1) + b"half of a frame")
    load.new_scheduler(whole=False)
    load.run(100, deaths=False)
    load.close()
    reading = Reading(str(path))
    replay = Replay()
    replay.run(reading)
    assert replay.sections == 3 and not reading.cut


def test_only_its_owner_reads_it_and_an_older_one_is_kept(path: Path) -> None:
    recorded(path, 0, 50)
    first = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    recorded(path, 1, 50)
    assert path.with_suffix(".1").read_bytes() == first and path.read_bytes() != first


def test_what_is_no_recording_is_not_overwritten(path: Path) -> None:
    path.write_text("a letter to my mother")
    with pytest.raises(ValueError, match="is no recording"):
        recorded(path, 0)
    assert path.read_text() == "a letter to my mother"


def test_another_server_writes_to_it(path: Path) -> None:
    load = Load(path, 0)
    with pytest.raises(ValueError, match="another server's"):
        RecordFile(str(path), 1 << 30, load.life.context.log, True)
    load.close()


def test_a_full_disk_ends_the_recording_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load = Load(path, 0)
    load.run(50, deaths=False)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), load.life.file._fd)
        load.life.file.write()
    ends = len(load.finishes)
    load.run(100, deaths=False)
    load.close()
    assert len(load.finishes) > ends and not load.life.file.open
    assert caplog.text.count(f"--record: {path} is not written any more: No space left on device") == 1


def test_the_length_is_bounded(path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    init = RecordFile.__init__
    monkeypatch.setattr(RecordFile, "__init__", lambda self, path, most, *rest: init(self, path, 40_000, *rest))
    monkeypatch.setattr("actorserve.actors.scheduler.replay.file.CHUNK", 1000)
    recorded(path, 0, 1000, deaths=False)
    assert 30_000 < path.stat().st_size <= 40_000 and caplog.text.count("--record-max-bytes allows 40,000") == 1
    assert replayed(path).plans > 0


def test_keys_are_not_in_it(path: Path) -> None:
    recorded(path, 0, 20, api_key=["very-secret"])
    assert b"very-secret" not in path.read_bytes()
    head = next(iter(Reading(str(path))))
    assert isinstance(head, RecordedLife) and head.config.api_key == Config().api_key
