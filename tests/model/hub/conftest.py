"""Folders in which names are looked for, and a hub that has the packaged model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model.hub.served import Hub


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which names are looked for; the hub cannot be reached."""
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """It has the packaged model."""
    from huggingface_hub import constants

    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)  # s until it sees the end
    thread.start()
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()
