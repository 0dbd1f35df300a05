"""`actorserve models`, on a cache of the hub's own layout."""

from __future__ import annotations

import json
from hashlib import sha1
from pathlib import Path

import huggingface_hub.constants
import msgspec
import pytest

from actorserve.actors.cli import main
from actorserve.actors.model.weights.weight_cache import (
    BEGINNING,
    DIGEST_BYTES,
    MAGIC,
    NEW,
    SUFFIX,
    Header,
    cache_folder,
    digest_of,
    first_tensor,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def put(cache: Path, name: str, size: int, kind: str = "models") -> Path:
    repo = cache / f"{kind}--{name.replace('/', '--')}"
    commit = sha1(name.encode()).hexdigest()
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "blobs" / "one").write_bytes(b"x" * size)
    (repo / "snapshots" / commit / "model.safetensors").symlink_to(repo / "blobs" / "one")
    return repo


def test_what_lies_in_the_cache_is_listed(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put(cache, "org/b", 3 << 20)
    put(cache, "org/a", 1 << 20)
    put(cache, "org/texts", 9, kind="datasets")
    assert main(["models", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["1.0", "MiB", "org/a", "main"], ["3.0", "MiB", "org/b", "main"]]
    assert main(["models", "list", "--json"]) == 0
    assert [model["bytes"] for model in json.loads(capfd.readouterr().out)] == [1 << 20, 3 << 20]


def test_nothing_is_listed_where_nothing_is(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert capfd.readouterr() == ("", "no models in the cache\n")
    cache.rmdir()
    assert main(["models", "list"]) == 0


def test_one_is_removed_and_the_others_stay(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gone, kept = put(cache, "org/a", 1 << 20), put(cache, "org/b", 5)
    assert main(["models", "remove", "org/a"]) == 0
    assert capfd.readouterr().out == "1.0 MiB of org/a are removed\n"
    assert not gone.exists()
    assert (kept / "blobs" / "one").exists()
    assert main(["models", "rm", "org/a"]) == 2
    assert "org/a is not in the cache;" in capfd.readouterr().err
    assert main(["models", "remove", "org/b:Q4_K_M"]) == 2
    assert "a type is not removed alone, but with all of org/b;" in capfd.readouterr().err


def test_what_is_no_name_of_the_hub_is_told(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", str(cache)]) == 2
    assert "is a path of this machine" in capfd.readouterr().err
    assert main(["models", "pull", "org/none"]) in (1, 2)  # without a network it may be there
    assert "org/none" in capfd.readouterr().err


def put_weights(folder: Path, name: str, model: str) -> Path:
    """As a start leaves them."""
    path = folder / f"{name}{SUFFIX}"
    header = msgspec.msgpack.encode(Header(model, {}))
    size = first_tensor(len(header)) + DIGEST_BYTES
    text = BEGINNING.pack(MAGIC, len(header), size) + header
    path.write_bytes(text.ljust(size - DIGEST_BYTES, b"\0") + digest_of(header))
    return path


def test_weights_of_earlier_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["models", "weights"]) == 0
    assert capfd.readouterr() == ("", "no weights are kept\n")
    folder = cache_folder(make=True)
    assert folder is not None
    one = put_weights(folder, "a", "/hub/models--org--one/snapshots/main")
    other, left = put_weights(folder, "b", "/models/other"), folder / f"{NEW}c{SUFFIX}"
    left.write_bytes(b"of one who was killed")
    assert main(["models", "weights", "org/one"]) == 0
    assert capfd.readouterr().out.split()[2:] == ["/hub/models--org--one/snapshots/main", one.name]
    assert main(["models", "weights", "--remove", "org/one"]) == 0
    assert not one.exists() and other.exists() and not left.exists()
    assert main(["models", "weights", "--remove", "org/one"]) == 2
    assert "org/one: no weights of it are kept" in capfd.readouterr().err
    assert main(["models", "weights", "--remove"]) == 0 and not list(folder.iterdir())
