"""A copy of the packaged model, to be damaged, and what is said of it then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import ConfigError, make_config

OPTIONS: dict[str, object] = {"device": "cpu", "max_model_len": 128, "max_num_seqs": 2}
CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"


def find(folder: Path, **options: object) -> ModelInfo:
    return find_model(make_config({"model": str(folder)} | OPTIONS | options))


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        find(folder, **options)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500
    return said


def write(folder: Path, file: str, **changes: Any) -> None:
    values = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
