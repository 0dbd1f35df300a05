"""Models of sentence-transformers, in folders and at the hub: what lies behind a model, and before its folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from tests.model.hub.served import NAME, Hub, refusal
from tests.support.models.dual_encoders import write_clip_modules, write_dual_encoder
from tests.support.models.embedders import write_model, write_modules


def test_a_model_of_sentence_transformers_that_is_kept_in_a_folder_inside(hub: Hub, here: Path) -> None:
    """CLIP, and what lies behind a model: weights of dense layers are as small as they are needed."""
    write_dual_encoder("clip", here / "made" / "0_CLIPModel")
    write_clip_modules(here / "made", "Normalize")
    files = {str(path.relative_to(here / "made")): path.read_bytes() for path in (here / "made").rglob("*.*")}
    hub.files = files | {"1_Other/model.safetensors": b"nobody's"}
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.architecture == "CLIPModel" and model.pooling is not None and model.pooling.normalize
    assert (Path(model.folder) / "model.safetensors").stat().st_size > 1000
    assert hub.asked[-1] == "0_CLIPModel/model.safetensors" and len(hub.asked) == len(set(hub.asked))


def test_dense_layers_of_sentence_transformers(hub: Hub, here: Path) -> None:
    write_model("bert", here / "made")
    write_modules(here / "made", dense=8)
    hub.files = {
        str(path.relative_to(here / "made")): path.read_bytes() for path in (here / "made").rglob("*") if path.is_file()
    }
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.pooling is not None and (Path(model.pooling.dense[0].folder) / "model.safetensors").is_file()


def test_a_colbert_whose_layer_lies_among_the_weights(here: Path, hub: Hub) -> None:
    """How wide its vectors are is known when these have come."""
    layer = {"linear.weight": np.zeros((12, 32), np.float32)}
    about = {"architectures": ["HF_ColBERT"], "model_type": "bert", "vocab_size": 512, "hidden_size": 32}
    hub.files["config.json"] = json.dumps({**about, "max_position_embeddings": 64}).encode()
    hub.files["model.safetensors"] = save(layer)
    model = resolve_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.pooling is not None and (model.pooling.width, model.pooling.dense[0].outputs) == (12, 12)
    assert (Path(model.pooling.dense[0].folder) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (["CLIPModel", "Dense"], "has Pooling or Dense behind CLIPModel"),
        (["CLIPModel", "LSTM"], "has a module LSTM"),
    ],
)
def test_modules_that_a_clip_has_not(here: Path, modules: list[str], said: str) -> None:
    write_dual_encoder("clip", here / "0_CLIPModel")
    write_clip_modules(here, *modules[1:])
    (here / "1_Dense").mkdir()
    (here / "1_Dense" / "config.json").write_text('{"in_features": 20, "out_features": 4}')
    assert said in refusal(str(here))
    (here / "modules.json").write_text("[]")
    assert "names no module" in refusal(str(here))
    (here / "modules.json").write_text('[{"type": "sentence_transformers.models.CLIPModel", "path": "9_None"}]')
    assert "9_None/config.json is missing" in refusal(str(here))
