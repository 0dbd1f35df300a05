"""A media actor, for tests of what it does with a model's pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch  # noqa: F401  # before transformers, which would believe for all of this process that there is none

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.options.config import Config
from tests.support.models.vision.folders import vision_folder

from .played import Bench


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder = vision_folder("qwen2_5_vl", tmp_path_factory.mktemp("models"))
    return resolve_model(Config(model=str(folder), worker="scripted"))


@pytest.fixture
def bench(model: ModelInfo) -> Iterator[Bench]:
    made = Bench(model)
    yield made
    made.close()
