"""What has to be seen beside a path: the parts of a model, and what links lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.commands.links import folder_for_elsewhere, what_it_needs


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """One of the hub's cache: links to files that have no names of their own."""
    model = tmp_path / "cache" / "models--org--name"
    snapshot = model / "snapshots" / "0123"
    (model / "blobs").mkdir(parents=True)
    (snapshot / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "1_Pooling/config.json"):
        blob = model / "blobs" / name.replace("/", "")
        blob.touch()
        (snapshot / name).symlink_to(Path("../" * (2 + name.count("/"))) / "blobs" / blob.name)
    return snapshot


def test_a_snapshot_needs_its_files(snapshot: Path) -> None:
    assert what_it_needs(snapshot) == [snapshot, snapshot.parents[1] / "blobs"]


def test_a_folder_in_a_snapshot_needs_what_lies_beside_the_snapshots(snapshot: Path) -> None:
    assert what_it_needs(snapshot / "1_Pooling") == [snapshot / "1_Pooling", snapshot.parents[1] / "blobs"]


def test_a_part_needs_the_others(snapshot: Path) -> None:
    for number in (1, 2):  # their links are looked up by name: a bound link is a file
        assert {snapshot / f"a-0000{one}-of-00002.gguf" for one in (1, 2)} <= {
            *what_it_needs(snapshot / f"a-0000{number}-of-00002.gguf")
        }
    for other in ("b-00001-of-00002.gguf", "a-00001-of-00003.gguf", "a.gguf"):
        (snapshot / other).touch()
        assert what_it_needs(snapshot / other) == [snapshot / other]


def test_the_way_through_links(tmp_path: Path) -> None:
    (tmp_path / "lies" / "model").mkdir(parents=True)
    (tmp_path / "models").symlink_to("current")
    (tmp_path / "current").symlink_to(tmp_path / "lies")
    ways = [tmp_path / name / "model" for name in ("models", "current", "lies")]
    assert what_it_needs(ways[0]) == ways


def test_a_folder_of_adapters_needs_what_its_links_need(snapshot: Path, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    (adapters / "own").mkdir(parents=True)
    (adapters / "own" / "b").touch()
    (adapters / "own" / "a").symlink_to("b")
    (adapters / "gone").symlink_to(tmp_path / "none")
    (adapters / "round").symlink_to("round")
    (adapters / "hub").symlink_to(snapshot)
    assert what_it_needs(adapters) == [adapters, snapshot, snapshot.parents[1] / "blobs"]


def test_a_folder_behind_a_link_is_named_by_where_its_own_links_are_right(snapshot: Path, tmp_path: Path) -> None:
    """In a service that sees `model` alone, ../../blobs would be another folder."""
    (model := tmp_path / "model").symlink_to(snapshot)
    assert folder_for_elsewhere(model) == snapshot == folder_for_elsewhere(snapshot)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").symlink_to(snapshot / "config.json")
    (current := tmp_path / "current").symlink_to("plain")
    assert folder_for_elsewhere(current) == current  # which may be another one at the next start
