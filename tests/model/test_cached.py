"""Folders that are made of other files: no more than may be, and none that is used is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actorserve.actors.model import cached

USE = """
import sys
from actorserve.actors.model.cached import cached_folder
cached_folder("some", "used", 0, dict)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cached, "MOST", 3)
    monkeypatch.setattr(cached, "_held", {})
    return tmp_path / "actorserve" / "some"


def made(number: int) -> Path:
    """One that nobody uses any more, and that was used at this time."""
    place = cached.cached_folder("some", "name", number, lambda: {"text.json": [number]})
    os.close(cached._held.pop(place))
    os.utime(place / cached.DONE, (number, number))
    return place


def test_those_that_were_used_last_stay(root: Path) -> None:
    places = [made(number) for number in (1, 2, 3)]
    again = cached.cached_folder("some", "name", 1, lambda: pytest.fail("it is there"))
    assert again == places[0] and again in cached._held
    places.append(made(4))
    assert [place.exists() for place in places] == [True, False, True, True]
    (root / ".old-of-one-that-died").mkdir()
    os.close(cached._held.pop(again))
    os.utime(again / cached.DONE, (0, 0))
    places.append(made(5))
    assert sorted(root.iterdir()) == sorted(places[2:])


def test_what_another_process_uses_stays(root: Path) -> None:
    user = subprocess.Popen([sys.executable, "-c", USE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None and user.stdout.readline() == b"there\n"
    (used,) = root.iterdir()
    os.utime(used / cached.DONE, (0, 0))
    places = [made(number) for number in (1, 2, 3, 4)]
    assert used.exists() and [place.exists() for place in places] == [False, True, True, True]
    user.kill()
    user.wait()
    user.stdout.close()
    made(5)
    assert not used.exists()


def test_one_that_is_removed_meanwhile_is_made_again(root: Path) -> None:
    place = made(1)
    cached._remove(place)
    assert not list(root.iterdir()) and made(1) == place and (place / "text.json").read_text() == "[1]"


def test_links_lead_to_what_the_folders_have_now(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in ((first, ("both", "old")), (second, ("both", "text.json", "same"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(folder.name)
    (first / "linked").symlink_to(first / "old")

    def linked() -> dict[str, str]:
        place = cached.linked_folder("some", [first, second], {"of": "both"}, lambda: {"text.json": "made"})
        return {path.name: path.read_text() for path in place.iterdir() if path.name != cached.DONE}

    there = {"both": "first", "same": "second", "text.json": "made"}
    assert linked() == there | {"old": "first", "linked": "first"}
    (first / "new").write_text("new")
    (first / "linked").unlink()
    (first / "linked").symlink_to(first / "new")
    (first / "old").unlink()
    assert linked() == there | {"new": "new", "linked": "new"}
