"""Pixtral, Mistral 3 and Voxtral in Mistral's own form: logits are those of transformers' whole model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers.models.whisper.modeling_whisper import sinusoids

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.values import read_json
from actorserve.actors.model.vision.processing import load_image_processor
from tests.support.models.mistral.files import SINES, TOKENIZER, convert
from tests.support.models.sounds.listeners import Listening, listener
from tests.support.models.vision.families import checkpoint
from tests.support.models.vision.reference import Reference
from tests.worker.driver import config_for
from tests.worker.vision.test_pictures import run
from tests.worker.vision.test_sounds import compare


@pytest.fixture(params=["pixtral", "mistral3", "ministral3", "mistral4"])
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path, Path]:
    """(the kind, a checkpoint of transformers, the same in Mistral's form)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    folder = checkpoint(request.param, tmp_path)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["vision_config"] |= {"hidden_act": "silu"}
    config["vision_config"]["rope_parameters"]["rope_theta"] = 700.0
    file.write_text(json.dumps(config))
    return request.param, folder, convert(folder, tmp_path / "own")


def test_logits_are_those_of_transformers(both: tuple[str, Path, Path]) -> None:
    kind, folder, own = both
    reference = Reference(kind, folder)
    assert run(lambda _: (reference, own), kind).mixed


def test_pictures_become_what_transformers_form_makes_of_them(both: tuple[str, Path, Path]) -> None:
    _, folder, own = both
    home = Path(resolve_model(config_for(own)).folder)
    hub, found = (load_image_processor(place, {}) for place in (folder, home))
    assert type(hub) is type(found)
    assert (dict(found.size), dict(found.patch_size)) == (dict(hub.size), dict(hub.patch_size))
    marks = ("spatial_merge_size", "image_token", "image_break_token", "image_end_token")
    options = [read_json(place / "processor_config.json") for place in (folder, home)]
    assert all(options[0].get(mark, 1) == options[1].get(mark, 1) for mark in marks)
    assert {path.name for path in own.iterdir()} == {*TOKENIZER, "params.json", "consolidated.safetensors"}


def test_logits_of_sounds_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    folder = listener("voxtral", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors[SINES] = sinusoids(*tensors[SINES].shape)  # as published ones have; those of tests are random
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    theirs, own = Listening("voxtral", folder), convert(folder, tmp_path / "own")
    compare("voxtral", theirs, own, hf_overrides={"audio_token_id": theirs.token})
    home = Path(resolve_model(config_for(own)).folder)
    hub, found = (read_json(place / "preprocessor_config.json") for place in (folder, home))
    assert {name: hub.get(name) for name in found} == found
