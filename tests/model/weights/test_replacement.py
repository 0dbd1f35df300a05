"""Other weights for a model whose config.json is read otherwise than it lies there."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER, ModelInfo
from actorserve.actors.model.weights.replacement import find_weights
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.worker.parked import load_weights
from actorserve.shm.weights import WeightsRecord

EPSILON = 0.25


@pytest.fixture
def folders(tmp_path: Path, cache: Path) -> Path:
    for name in ("model", "others/new", "others/shape"):
        shutil.copytree(DEMO_FOLDER, tmp_path / name)
    other = tmp_path / "others" / "shape" / "config.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"rope_theta": 7.0}))
    return tmp_path


def served(folders: Path) -> tuple[Config, ModelInfo]:
    given: dict[str, Any] = {"model": str(folders / "model"), "hf_overrides": json.dumps({"rms_norm_eps": EPSILON})}
    config = make_config(given | {"weights_folder": [str(folders / "others")], "device": "cpu"})
    model = find_model(config)
    assert Path(model.folder) != folders / "model"
    return config, model


def test_like_is_compared_with_like(folders: Path) -> None:
    config, model = served(folders)
    assert find_weights(config, model, str(folders / "others" / "new")) == str(folders / "others" / "new")
    assert find_weights(config, model, str(folders / "model")) == find_weights(config, model, "") == ""
    with pytest.raises(ConfigError, match=r"is another model: its config.json differs in rope_theta$"):
        find_weights(config, model, str(folders / "others" / "shape"))


def test_a_worker_reads_them_as_the_model_before(folders: Path) -> None:
    config, model = served(folders)
    files = {"weights": WeightsRecord.create(1)}
    WeightsRecord(files["weights"], 0).store(str(folders / "others" / "new"))
    log, spec = logging.getLogger("worker"), SimpleNamespace(engine=0)
    context: Any = SimpleNamespace(config=config, model=model, files=files, log=log, spec=spec)
    loaded = load_weights(context, lambda given: Path(given.model.folder))
    assert isinstance(loaded, Path)
    assert json.loads((loaded / "config.json").read_text())["rms_norm_eps"] == EPSILON
    assert (loaded / "model.safetensors").resolve() == folders / "others" / "new" / "model.safetensors"
