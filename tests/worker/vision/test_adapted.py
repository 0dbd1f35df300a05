"""Models that see whose text part is computed by layers of transformers: where they see, and what `check` counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.quantization import METHODS
from actorserve.actors.model.vision import adapted
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.vision.tower import load_tower
from tests.support.models.vision.families import ADAPTED, DIVIDED, EVERY, checkpoint
from tests.support.models.vision.reference import Reference
from tests.worker.driver import config_for

FLOAT = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapted")


@pytest.mark.parametrize("family", ADAPTED)
def test_where_it_sees(family: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(family, root)

    def seen(**options: Any) -> bool:
        info = resolve_model(config_for(folder, **options))
        own = ["image", *(["video"] if EVERY[family].film else []), *(["audio"] if family == "gemma4" else [])]
        assert info.media == ([] if info.vision is None else own)
        return info.vision is not None

    monkeypatch.setattr(adapted, "may_have_gpu", lambda: False)
    assert seen() and seen(speculative_config=json.dumps({"method": "ngram", "num_speculative_tokens": 2}))
    assert seen(tensor_parallel_size=2) and not seen(pipeline_parallel_size=2)
    assert not seen(model_impl="transformers")
    assert not seen(speculative_config=json.dumps({"model": str(folder), "num_speculative_tokens": 2}))
    monkeypatch.setattr(adapted, "may_have_gpu", lambda: True)
    assert seen() == family.startswith("gemma4") and seen(device="cpu")
    folder = Path(shutil.copytree(folder, root / f"{family}-alone"))
    for name in ("processor_config.json", "preprocessor_config.json"):
        assert seen(device="cpu")
        (folder / name).unlink()
    assert not seen(device="cpu")


@pytest.mark.parametrize("family", ADAPTED)
def test_what_check_counts_is_the_text_part_and_the_tower_in_floats(family: str, root: Path) -> None:
    folder = checkpoint(family, root)

    def counted(name: str = "weights_bytes", **options: Any) -> int:
        config = config_for(folder, device="cpu", **options)
        facts = {name: value for part in inspect(config, resolve_model(config)) for name, value in part.items()}
        return int(facts[name])

    whole = Reference(family, folder).model
    here = [weight.numel() for weight in whole.parameters()]
    head = whole.get_output_embeddings()
    tied = head.weight.numel() if head.weight is whole.get_input_embeddings().weight else 0
    floats = counted()
    assert floats == FLOAT * (sum(here) + tied)
    if family in DIVIDED:
        assert counted("parameters") == counted("parameters", tensor_parallel_size=2)
        assert FLOAT * sum(here) // 2 < counted(tensor_parallel_size=2) < floats
    text = whole.model.language_model
    products = [part.weight for part in (*text.modules(), head) if isinstance(part, nn.Linear)]
    experts = [weight for weight in text.parameters() if weight.dim() == 3]
    multiplied = sum(weight.numel() for weight in (*products, *experts))
    each = METHODS["int8"].bytes_per_weight
    assert each is not None
    assert floats - counted(quantization="int8") == pytest.approx(multiplied * (FLOAT - each), abs=2)


def test_the_bounds_of_clipped_layers_are_the_checkpoints(root: Path) -> None:
    folder = checkpoint("gemma4", root)
    config = config_for(folder, device="cpu")
    tower = load_tower(config, resolve_model(config), torch.float32)
    bounds = {name: float(value) for name, value in tower.named_buffers() if name.endswith(("_min", "_max"))}
    assert any(name.startswith("audio_tower") for name in bounds)
    assert all(value == (-4.0 if name.endswith("_min") else 4.0) for name, value in bounds.items())
