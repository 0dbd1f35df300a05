"""Tiny models that see pictures are made once for all modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models.vision.families import checkpoint
from tests.support.models.vision.reference import Reference

LAYERS: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma4": {},  # the last of whose layers read the keys of others
    "gemma4_together": {"sliding_window": 72},  # as far as a picture goes
}
FEW = {"num_hidden_layers": 2}
ROOM = 1 << 30


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What models by layers of transformers ask a device for, where there is none."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (ROOM, ROOM))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Reference, Path]]:
    """A family's tiny model, by transformers and as a folder."""
    root = tmp_path_factory.mktemp("vision")
    known: dict[str, tuple[Reference, Path]] = {}

    def find(family: str) -> tuple[Reference, Path]:
        if family not in known:
            folder = checkpoint(family, root, **LAYERS.get(family, FEW))
            known[family] = Reference(family, folder), folder
        return known[family]

    return find
