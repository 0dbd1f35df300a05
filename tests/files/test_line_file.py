"""Lines of JSON that are appended whole, and what was torn off."""

from __future__ import annotations

import os
from pathlib import Path

from actorserve.actors.files.line_file import LineFile
from tests.files.deaths import deaths


def opened(path: Path) -> LineFile:
    return LineFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND))


def taken_over(path: Path) -> list[bytes]:
    """The whole lines; the rest is cut off."""
    file, found = opened(path), []
    for _, line in file.lines():
        if not line.endswith(b"\n"):
            break
        found.append(line)
    file.cut()
    file.close()
    return found


def test_what_is_torn_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthr")
    assert taken_over(path) == [b"one\n", b"two\n"] and path.read_bytes() == b"one\ntwo\n"
    file = opened(path)
    file.append(b"three")
    file.sync()
    file.close()
    assert taken_over(path) == [b"one\n", b"two\n", b"three\n"]


def test_a_death_tears_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def append() -> None:
        file = opened(path)
        os.write, write = (
            (lambda fd, data: write(fd, memoryview(data)[:2])),
            os.write,
        )  # the kernel takes little at a time
        file.append(b"line one")
        file.append(b"line two")

    found = set()
    for _ in deaths(append):
        whole = taken_over(path) if path.exists() else []
        found.add(tuple(whole))
        assert whole == [b"line one\n", b"line two\n"][: len(whole)]
        path.unlink(missing_ok=True)
    assert found == {(), (b"line one\n",)}
