"""Profiles that begin and are stopped while an actor is busy with something else."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from actorserve.actors.runtime.profiling import (
    MissedProfiles,
    Part,
    ProfileWatch,
    change_profile,
    is_part,
    part_name,
)
from actorserve.shm.kv_map.profile import ProfileState, ProfileWords


def make_words() -> ProfileWords:
    return ProfileWords(memoryview(bytearray(4096)).cast("Q"), 0)


def test_one_that_was_over_before_it_was_seen_has_a_part_all_the_same(tmp_path: Path) -> None:
    """Whoever joins the parts need not wait for it."""
    words = make_words()
    watch = ProfileWatch(words, str(tmp_path), "worker", 3)
    watch.look()
    number = change_profile(words, 60.0)
    assert change_profile(words, 0) == number
    for _ in range(3):
        watch.look()
    (path,) = tmp_path.iterdir()
    assert path.name == part_name("worker", 3, number)
    part = msgspec.json.decode(path.read_bytes(), type=Part)
    assert (part.actor, part.incarnation, part.cut) == ("worker", 3, False)
    assert [(one["name"], one["pid"]) for one in part.entries] == [("process_name", os.getpid())]
    path.unlink()
    watch.look()
    assert not list(tmp_path.iterdir()), "it is told once"


def test_one_that_begins_is_not_taken_for_one_that_is_over() -> None:
    """Its number is stored before its end."""
    words = make_words()
    missed = MissedProfiles(words)
    assert missed.look() == 0
    words.state = ProfileState(7, 0)
    assert missed.look() == 0
    words.state = ProfileState(7, 100)
    missed.know(7)
    words.state = ProfileState(7, 0)
    assert [missed.look() for _ in range(3)] == [0, 0, 0]
    words.state = ProfileState(9, 0)
    assert [missed.look() for _ in range(3)] == [0, 9, 0]
    assert MissedProfiles(words).look() == 0, "a successor has missed nothing"


def test_parts_are_told_from_other_files_of_that_ending() -> None:
    """The folder may be one that downloads go to."""
    actors = ["worker@0", "renderer-0+a.b"]
    assert all(is_part(part_name(actor, 3, 12345), actors) for actor in actors)
    others = ["film.mkv.part", "worker@0.part", "worker@0.3.part", "worker@0.3.x.part", "other.3.12345.part"]
    assert not any(is_part(name, actors) for name in [*others, "worker@0.3.12345.writing", "x.worker@0.3.12345.part"])
