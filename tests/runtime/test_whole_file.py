"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.runtime.whole_file import write_whole


def test_the_file_before_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    for content in (b"[1]", b"[1, 2]"):
        write_whole(path, content)
        assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"part.json": content}


def test_what_cannot_be_written_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part.json"
    write_whole(path, b"[1]")

    def full(place: Path, content: bytes) -> int:
        with place.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"[1, 2]")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"part.json": b"[1]"}
