"""Which file of a folder is its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.model.gguf.folder import gguf_in
from actorserve.actors.options.config import ConfigError
from tests.support.models.gguf.files import tiny_model


def test_what_a_model_sees_or_drafts_by_is_none(tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    others = ("imatrix.gguf", "imatrix_unsloth.gguf", "m-F16-LoRA.gguf", "m-vocab.gguf", "m-MMPROJ-f16.gguf")
    for name in ("mmproj-F16.gguf", "m-mmproj-f16.gguf", "mtp-m.gguf", *others):
        (tmp_path / name).write_bytes(b"")
    assert gguf_in(tmp_path) == path
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"has several GGUF models \(m\.gguf, other\.gguf\)"):
        gguf_in(tmp_path)


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj"])
def test_a_file_that_says_what_else_it_is_is_none(kind: str, tmp_path: Path) -> None:
    """Whatever its name is."""
    tiny_model(tmp_path, {"general.type": kind}).rename(tmp_path / "a.gguf")
    path = tiny_model(tmp_path, {"general.type": "model"})
    assert gguf_in(tmp_path) == path


@pytest.mark.parametrize(
    "name", ["m-imatrix-IQ4_XS", "m-Imatrix-Q4_K_M", "Q4_K_M-imatrix", "imatrix-m.Q6_K", "m-imatrix-v2", "m-Q8_0"]
)
def test_a_model_may_be_named_after_what_it_was_quantised_by(name: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path).rename(tmp_path / f"{name}.gguf")
    for other in ("imatrix", "imatrix_unsloth", "m.imatrix", "m-BF16-imatrix"):
        (tmp_path / f"{other}.gguf").write_bytes(b"")
    assert gguf_in(tmp_path) == path


@pytest.mark.parametrize("name", ["my-merged-lora", "all-vocab", "m-imatrix"])
def test_a_model_alone_may_be_named_as_what_it_is_not(name: str, tmp_path: Path) -> None:
    tiny_model(tmp_path, {"general.type": "adapter"}).rename(tmp_path / "a-lora.gguf")
    (tmp_path / "m-mmproj.gguf").write_bytes(b"")
    assert gguf_in(tmp_path) is None
    path = tiny_model(tmp_path).rename(tmp_path / f"{name}.gguf")
    assert gguf_in(tmp_path) == path
