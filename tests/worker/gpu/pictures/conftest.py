"""Tiny models that see pictures are made once for all modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.models.vision.families import checkpoint
from tests.support.models.vision.reference import Reference

LAYERS = {"gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}}
FEW = {"num_hidden_layers": 2}


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
