"""Whatever changes the meaning of a block changes its fingerprint, and nothing else does."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.weights.marks import folder_marks
from actorserve.actors.options.config import make_config
from actorserve.actors.porter import fingerprint
from actorserve.actors.porter.fingerprint import Identities, make_fingerprint, model_identity

OTHERWISE: dict[str, Any] = {
    "dtype": "bfloat16", "quantization": "int8", "model_impl": "transformers", "deterministic": True,
    "load_format": "dummy", "seed": 3, "max_model_len": 64, "kv_cache_dtype": "int8", "block_size": 16,
    "tensor_parallel_size": 2, "enable_expert_parallel": True, "cpu_kernels": "torch", "trust_remote_code": True,
    "pipeline_parallel_size": 2,
    "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"video": {"num_frames": 3}}, "max_media_pixels": 4096,
}  # fmt: skip
SAME: dict[str, Any] = {
    "max_num_seqs": 3,
    "port": 1234,
    "kv_offload": "host:4Mi",
    "log_level": "debug",
    "max_num_batched_tokens": 99,
}


def of(identity: bytes = b"model", workers: tuple[bytes, ...] = (b"a",), **options: object) -> bytes:
    return make_fingerprint(identity, make_config(dict(options)), workers)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 10000}')
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", fingerprint.OPTIONS)
def test_each_option_counts(name: str) -> None:
    assert of(**{name: OTHERWISE[name]}) != of()


@pytest.mark.parametrize("name", SAME)
def test_others_do_not(name: str) -> None:
    assert of(**{name: SAME[name]}) == of()


def test_the_model_and_the_workers_count() -> None:
    found = {of(), of(b"other"), of(workers=(b"b",)), of(workers=(b"a", b"a"))}
    assert len(found) == 4


@pytest.mark.parametrize("large", [False, True])
def test_the_models_files_count_by_their_contents(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 100 if large else 1 << 30)
    kept, weights = tmp_path / "kept", model / "model.safetensors"
    first = model_identity(str(model), kept)
    assert (kept / fingerprint.DIGESTS).exists() == large
    (model / "tokenizer.json").write_text("[]")  # blocks are known by token ids
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert model_identity(str(model), kept) == model_identity(str(copy), kept) == first
    weights.write_bytes(bytes(999) + b"\1")
    os.utime(weights, (1, 1))
    second = model_identity(str(model), kept)
    (model / "config.json").write_text('{"rope_theta": 500000}')
    assert len({first, second, model_identity(str(model), kept)}) == 3


def test_how_pictures_become_numbers_counts(model: Path, tmp_path: Path) -> None:
    found = [(model_identity(str(model), tmp_path / "kept"), folder_marks(str(model)))]
    for name in ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"):
        (model / name).write_text("{}")
        found.append((model_identity(str(model), tmp_path / "kept"), folder_marks(str(model))))
    assert len(set(found)) == 4


@pytest.mark.parametrize("left", [b"", bytes(64), b"\xff" * 64, b"f" * 63])
def test_a_digest_that_is_none_is_computed_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    monkeypatch.setattr(fingerprint, "LARGE", 100)
    first = model_identity(str(model), tmp_path / "kept")
    (place,) = (tmp_path / "kept" / fingerprint.DIGESTS).iterdir()
    place.write_bytes(left)
    assert model_identity(str(model), tmp_path / "kept") == first and len(place.read_text()) == 64


def test_files_that_could_not_be_read_are_tried_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, woken = fingerprint._read, threading.Event()

    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fingerprint, "_read", fail)
    known = Identities(tmp_path / "kept", woken.set, logging.getLogger("porter"))
    marks = known.look(str(model))
    assert marks is not None and woken.wait(60) and known.of(str(model), marks) is None
    monkeypatch.setattr(fingerprint, "_read", read)
    woken.clear()
    assert not known._is_due(marks), "not at once"
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + fingerprint.AGAIN_S)
    known.of(str(model), marks)
    assert woken.wait(60)
    assert known.of(str(model), marks) == model_identity(str(model), tmp_path / "kept")


def test_of_the_hubs_cache_names_are_taken(model: Path, tmp_path: Path) -> None:
    """A file there is a link to one that is named by its contents' digest: it need not be read."""
    (tmp_path / "blobs").mkdir()
    weights = model / "model.safetensors"
    weights.unlink()
    found = set()
    for name in ("0" * 64, "1" * 64):
        (tmp_path / "blobs" / name).write_bytes(b"weights")
        weights.unlink(missing_ok=True)
        weights.symlink_to(tmp_path / "blobs" / name)
        found.add(model_identity(str(model), tmp_path))
    assert len(found) == 2


def test_of_a_gguf_file_its_contents_count(model: Path, tmp_path: Path) -> None:
    """Its folder has but what its header says."""
    file = tmp_path / "model.gguf"
    (model / "model.safetensors").unlink()
    (model / "gguf.json").write_text(json.dumps({"files": [{"path": str(file)}]}))
    found = set()
    for contents in (b"one", b"two"):
        file.write_bytes(contents)
        found.add(model_identity(str(model), tmp_path / "kept"))
    assert len(found) == 2


def test_weights_are_known_by_what_a_worker_saw(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not by what lies in their place now."""
    woken = threading.Event()
    known, folder = Identities(None, woken.set, logging.getLogger("porter")), str(model)
    first = folder_marks(folder)
    known.of(folder, first)  # it is computed beside, and there sooner or later
    assert woken.wait(60)
    identity = known.of(folder, first)
    assert identity == model_identity(folder, None)
    (model / "model.safetensors").write_bytes(b"others")
    assert known.of(folder, first) == identity, "it is what was read then"
    second, fresh = folder_marks(folder), Identities(None, woken.set, logging.getLogger("porter"))
    woken.clear()
    assert fresh.of(folder, first) is None and woken.wait(60) and fresh.of(folder, first) is None
    assert fresh.of(folder, second) not in (None, identity)
    assert caplog.text.count("have changed since") == 1
