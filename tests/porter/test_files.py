"""Files of blocks: what is not whole, or not what its name says, is not there; what cannot be written is no error."""

from __future__ import annotations

import logging
import os
import resource
import threading
from pathlib import Path

import pytest

from actorserve.actors.porter import folder as folder_module
from actorserve.actors.porter.carrier import Kind
from actorserve.actors.porter.files import HEAD, BadFile, place_of, read_block, write_block
from actorserve.actors.porter.folder import FolderTier
from actorserve.actors.porter.sweep import Swept, forgotten_name, measure, sweep
from tests.support.until import until

from .blocks import WAIT_S

PRINT, OTHER = bytes(range(32)), bytes(32)
KEY, DATA = bytes(range(16)), bytes(range(256)) * 20
LOG = logging.getLogger("porter")


def test_a_block_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_block(tmp_path, PRINT, KEY, len(DATA)) is None
    size = write_block(tmp_path, PRINT, KEY, DATA)
    assert read_block(tmp_path, PRINT, KEY, len(DATA)) == DATA
    assert size == place_of(tmp_path, PRINT, KEY).stat().st_size
    assert read_block(tmp_path, OTHER, KEY, len(DATA)) is None
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".kv"]


@pytest.mark.parametrize("length", [0, 1, HEAD.size - 1, HEAD.size, HEAD.size + 1, HEAD.size + len(DATA) - 1])
def test_a_torn_file_is_none(tmp_path: Path, length: int) -> None:
    write_block(tmp_path, PRINT, KEY, DATA)
    place = place_of(tmp_path, PRINT, KEY)
    place.write_bytes(place.read_bytes()[:length])
    with pytest.raises(BadFile):
        read_block(tmp_path, PRINT, KEY, len(DATA))


@pytest.mark.parametrize("at", [0, 7, 8, 40, 56, 64, 95, HEAD.size, HEAD.size + 999, HEAD.size + len(DATA) - 1])
def test_a_garbled_file_is_none(tmp_path: Path, at: int) -> None:
    write_block(tmp_path, PRINT, KEY, DATA)
    place = place_of(tmp_path, PRINT, KEY)
    garbled = bytearray(place.read_bytes())
    garbled[at] ^= 1
    place.write_bytes(garbled)
    with pytest.raises(BadFile):
        read_block(tmp_path, PRINT, KEY, len(DATA))


def test_a_foreign_file_is_none(tmp_path: Path) -> None:
    """Of another fingerprint, key or size, or longer than it says: under a name that is not its own."""
    place = place_of(tmp_path, PRINT, KEY)
    for fingerprint, key, data in ((OTHER, KEY, DATA), (PRINT, bytes(16), DATA), (PRINT, KEY, DATA[:-1])):
        write_block(tmp_path, fingerprint, key, data)
        place.parent.mkdir(parents=True, exist_ok=True)
        place_of(tmp_path, fingerprint, key).replace(place)
        with pytest.raises(BadFile):
            read_block(tmp_path, PRINT, KEY, len(DATA))
    write_block(tmp_path, PRINT, KEY, DATA)
    with place.open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadFile):
        read_block(tmp_path, PRINT, KEY, len(DATA))


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(DATA) // 2, hard))
    try:
        with pytest.raises(OSError, match="large"):
            write_block(tmp_path, PRINT, KEY, DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_folder_is_kept_within_its_size(tmp_path: Path) -> None:
    sizes = [write_block(tmp_path, PRINT if n % 2 else OTHER, bytes([n]) * 16, DATA) for n in range(10)]
    for number in range(10):
        os.utime(place_of(tmp_path, PRINT if number % 2 else OTHER, bytes([number]) * 16), (number, number))
    left = place_of(tmp_path, PRINT, KEY)
    left = left.with_name(f"{left.name}.7-1.part")
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"of one who has died")
    os.utime(left, (1, 1))
    limit = 6 * sizes[0]
    assert sweep(tmp_path, limit) == Swept(5 * sizes[0], 5)
    assert measure(tmp_path) == 5 * sizes[0] and not left.exists()
    assert read_block(tmp_path, PRINT, bytes([9]) * 16, len(DATA)) == DATA, "the last used stay"
    assert read_block(tmp_path, OTHER, bytes([4]) * 16, len(DATA)) is None
    assert sweep(tmp_path, limit) == Swept(5 * sizes[0], 0)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """Whatever folder was named, and whatever ends like a block's name."""
    write_block(tmp_path, PRINT, KEY, DATA)
    place = place_of(tmp_path, PRINT, KEY)
    link = place.with_name(f"{'1' * 32}.kv")
    link.symlink_to(tmp_path / "film.kv")
    others = [
        *(tmp_path / name for name in ("film.part", "film.kv", "deep/er/film.part", f"{place.name}.1-1.part")),
        *(place.with_name(name) for name in ("film.part", "film.kv", f"{place.name}.part")),
        place.parent / "deeper" / place.name,
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
        os.utime(path, (1, 1))
    assert measure(tmp_path) == place.stat().st_size
    assert sweep(tmp_path, 0) == Swept(0, 1) and not place.exists()
    assert all(path.read_bytes() == DATA for path in others) and link.is_symlink()


def test_what_cannot_be_removed_is_told_and_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [bytes([n]) * 16 for n in range(4)]
    sizes = [write_block(tmp_path, PRINT, key, DATA) for key in keys]
    for age, key in enumerate(keys):
        os.utime(place_of(tmp_path, PRINT, key), (100 + age, 100 + age))
    kept, unlink = str(place_of(tmp_path, PRINT, keys[0])), os.unlink

    def refuse(path: str) -> None:
        if path == kept:
            raise PermissionError(1, "of somebody else", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    found = sweep(tmp_path, sizes[0])
    assert found is not None and (found.bytes, found.removed) == (sizes[0], 3)
    assert isinstance(found.trouble, PermissionError) and Path(kept).exists()


def test_what_is_forgotten_is_not_found_and_removed_later(tmp_path: Path) -> None:
    """Also what a server before has begun to forget, and where there is nothing."""
    place = place_of(tmp_path, PRINT, KEY)
    write_block(tmp_path, PRINT, KEY, DATA)
    forgotten = forgotten_name(place.parents[1])
    place.parents[1].rename(forgotten)
    other = tmp_path / f"{forgotten.name}-of-others"
    other.mkdir()
    assert read_block(tmp_path, PRINT, KEY, len(DATA)) is None and measure(tmp_path) == 0
    assert sweep(tmp_path, 1 << 30) == Swept(0, 0)
    assert not forgotten.exists() and other.exists()
    tier, done = FolderTier(tmp_path, 1 << 30, lambda: None, LOG), threading.Event()
    tier.forget(Kind(PRINT, len(DATA)), done.set)
    assert done.wait(WAIT_S) and tier.answers


def test_a_block_that_is_gone_is_written_again(tmp_path: Path) -> None:
    kind = Kind(PRINT, len(DATA))
    tier = FolderTier(tmp_path, 1 << 30, lambda: None, LOG)
    tier.write(kind, KEY, DATA)
    until(lambda: tier.has(kind, KEY))
    place_of(tmp_path, PRINT, KEY).unlink()
    reading = tier.read(kind, [KEY])
    until(lambda: reading.done)
    assert not reading.blocks and not tier.has(kind, KEY)


def test_a_folder_reads_chains_and_forgets(tmp_path: Path) -> None:
    woken, kind = threading.Event(), Kind(PRINT, len(DATA))
    tier = FolderTier(tmp_path, 1 << 30, woken.set, LOG)
    keys = [bytes([n]) * 16 for n in range(5)]
    for key in (*keys[:2], keys[3]):
        tier.write(kind, key, DATA)
    until(lambda: tier.has(kind, keys[3]))
    assert tier.counts.written == 3
    reading = tier.read(kind, keys)
    until(lambda: reading.done)
    assert reading.blocks == [DATA, DATA] and woken.is_set(), "it ends at the first that is not there"
    place_of(tmp_path, PRINT, keys[1]).write_bytes(b"torn")
    reading = tier.read(kind, keys)
    until(lambda: reading.done)
    assert reading.blocks == [DATA] and tier.counts.bad == 1 and not place_of(tmp_path, PRINT, keys[1]).exists()
    done = threading.Event()
    tier.forget(kind, done.set)
    assert done.wait(WAIT_S)
    reading = tier.read(kind, keys)
    until(lambda: reading.done)
    assert not reading.blocks and not measure(tmp_path)


def test_what_is_too_much_goes_though_nobody_writes_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "SWEEP_S", 3600.0)
    size = write_block(tmp_path, OTHER, KEY, DATA)
    tier = FolderTier(tmp_path, 6 * size, lambda: None, LOG)
    until(lambda: tier.counts.bytes == size)  # it has been swept
    for number in range(9):
        tier.write(Kind(PRINT, len(DATA)), bytes([number]) * 16, DATA)
    until(lambda: tier.counts.evicted > 0)


def test_a_folder_that_cannot_be_made_is_no_error() -> None:
    kind = Kind(PRINT, len(DATA))
    tier = FolderTier(Path("/proc/actorserve-kv"), 1 << 30, lambda: None, LOG)
    tier.write(kind, KEY, DATA)
    until(lambda: tier.counts.errors > 0)
    assert not tier.takes, "it is tried again later"
    reading = tier.read(kind, [KEY])
    until(lambda: reading.done)
    assert not reading.blocks


def test_a_folder_that_takes_nothing_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    tier = FolderTier(Path("/proc/actorserve-kv"), 1 << 30, lambda: None, LOG)
    until(lambda: tier.counts.errors > 0)
    assert not tier.takes
    assert [record.levelname for record in caplog.records if "/proc/actorserve-kv" in record.message] == ["WARNING"]


def test_a_folder_that_stands_still_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def stand_still(*args: object) -> None:
        goes_on.wait(WAIT_S)

    monkeypatch.setattr(folder_module, "read_block", stand_still)
    monkeypatch.setattr(folder_module, "STALLED_S", 0.0)
    tier = FolderTier(tmp_path, 1 << 30, lambda: None, LOG)
    assert tier.answers
    readings = [tier.read(Kind(PRINT, 8), [KEY]) for _ in range(folder_module.READERS)]
    until(lambda: not tier.answers)
    goes_on.set()
    until(lambda: all(reading.done for reading in readings) and tier.answers)
