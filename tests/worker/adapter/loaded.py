"""Models by layers of transformers, loaded as the worker loads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.load import load_adapted
from actorserve.actors.worker.adapter.model import AdaptedModel
from tests.worker.driver import config_for

Checkpoints = Callable[..., Path]


BY_TRANSFORMERS = {"model_impl": "transformers", "device": "cpu"}


def load(folder: Path, **options: Any) -> AdaptedModel:
    config = config_for(folder, **BY_TRANSFORMERS, **options)
    return load_adapted(config, resolve_model(config))


def logits_of(folder: Path, **options: Any) -> torch.Tensor:
    """Behind a few tokens."""
    model = load(folder, **options)
    trial, text = verify.Trial(model), torch.arange(3, 3 + verify.DECODED + 5)
    with torch.inference_mode():
        return trial.run([text])[0]
