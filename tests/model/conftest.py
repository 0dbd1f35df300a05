"""A cache for what is made of models' files, and a model to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from actorserve.actors.model.info import DEMO_FOLDER


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of GGUF files and vocabularies are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be damaged."""
    return Path(shutil.copytree(DEMO_FOLDER, tmp_path / "model"))
