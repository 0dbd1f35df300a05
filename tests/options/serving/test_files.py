"""--files-dir: where it may be, and what goes with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_it_may_be_a_folder_that_is_made(tmp_path: Path) -> None:
    config = make_config({"files_dir": str(tmp_path / "a" / "b"), "files_limit": 4096, "max_batch_lines": 3})
    assert config.has_batches and not make_config({}).has_batches


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_batch_lines": 3}, "--max-batch-lines goes with --files-dir"),
        ({"files_dir": f"{__file__}/x"}, r"--files-dir: .*test_files.py is no folder"),
        ({"files_limit": 5}, "--files-limit"),
    ],
)
def test_what_cannot_be_names_the_option(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(values)


def test_it_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"--files-dir: .* cannot be written to"):
        make_config({"files_dir": str(tmp_path)})
