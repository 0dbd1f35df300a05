"""The whole start of an encoder on a pretended GPU, from options to the numbers of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from actorserve.actors.model.quantization import NONE
from actorserve.actors.options.config import make_config
from actorserve.actors.worker.pooling import load as pooling_load
from actorserve.actors.worker.pooling import start as pooling
from actorserve.actors.worker.pooling.encoder import Encoder
from tests.support.gpu.pretended_device import DEVICE, on_the_host, pretended
from tests.support.models.embedders import write_model

from ..eager.test_start import IDS, SIZES, born, vector

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")


def test_an_encoder_that_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers does at load is done before, on the host."""
    write_model("bert", tmp_path)
    with torch.no_grad():
        model, exact = (BertModel.from_pretrained(tmp_path).eval() for _ in range(2))
        expected = exact(input_ids=torch.tensor([IDS])).last_hidden_state[0].mean(0).numpy()
    choose = Encoder.choose

    def chosen(encoder: Any, longest: int) -> Any:
        with on_the_host():
            return choose(encoder, longest)

    monkeypatch.setattr(Encoder, "choose", chosen)
    monkeypatch.setattr(pooling_load, "_load", lambda *given: (model, torch.float32, NONE))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: None)
    options = {"model": str(tmp_path), "runner": "pooling", "dtype": "float32", "device": "auto", **SIZES}
    with pretended():
        scheduler, context = born(make_config(options))
        actor = pooling.start(context, DEVICE)
        found = vector(context, actor, scheduler)
    assert actor.runner._model.device == DEVICE  # type: ignore[attr-defined]
    assert np.abs(found - expected).max() < 1e-4
