"""Heads that do not fit, or are none: one line that names the field or the tensor, before any actor is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actorserve.actors.model.checks.drafts import find_head
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.heads.checkpoints import Head
from actorserve.actors.model.heads.formats import MedusaShape, RecurrentShape
from actorserve.actors.model.info import DEMO_FOLDER, resolve_model
from actorserve.actors.model.values import read_json
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.speculative.actor import load_drafter, make_proposer
from tests.support.models import heads
from tests.support.models.checkpoints import checkpoint

Edit = Callable[[heads.Tensors], None]
TARGET = read_architecture(read_json(DEMO_FOLDER / "config.json"))


def config_with(folder: Path | None, method: str, tokens: int = 3, model: Path = DEMO_FOLDER) -> Config:
    given = {"method": method, "num_speculative_tokens": tokens} | ({"model": str(folder)} if folder else {})
    options = {"model": str(model), "device": "cpu", "max_model_len": 128, "max_num_seqs": 2}
    return make_config({**options, "speculative_config": json.dumps(given)})


def found(folder: Path, method: str) -> Head:
    config = config_with(folder, method)
    head = find_head(config, resolve_model(config), TARGET)
    assert head is not None
    return head


def refusal(config: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        find_model(config)
    said = str(caught.value)
    assert said.startswith("--speculative-config: ") and "\n" not in said
    return said.removeprefix("--speculative-config: ")


def without(*names: str) -> Edit:
    def edit(tensors: heads.Tensors) -> None:
        for name in names:
            del tensors[name]

    return edit


def resized(name: str, *sizes: int) -> Edit:
    return lambda tensors: tensors.update({name: torch.zeros(*sizes)})


@pytest.mark.parametrize(
    ("edit", "config", "words"),
    [
        (None, {"hidden_size": 128}, "says hidden_size = 128, and the model that it drafts for has 256"),
        (None, {"vocab_size": 32000}, "says vocab_size = 32000, and the model that it drafts for has 2048"),
        (None, {"target_hidden_size": 64}, "says target_hidden_size = 64, and the model that it drafts for has 256"),
        (None, {"draft_vocab_size": 4096}, "draft_vocab_size = 4096; a number up to 2048"),
        (None, {"draft_vocab_size": 100}, "d2t [500] in place of [100]"),
        (None, {"num_hidden_layers": 2}, "says num_hidden_layers = 2; heads of 1 layer are supported"),
        (None, {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM are not supported"),
        (None, {"architectures": "Llama"}, "architectures = 'Llama'; a list of names"),
        (None, {"fc_norm": True}, "says fc_norm, which is not supported"),
        (None, {"eagle_config": {"use_aux_hidden_state": False}}, "says use_aux_hidden_state = false"),
        (None, {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "layers of the model, which has 4"),
        (None, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}, "layers of the model, which has 4"),
        (None, {"eagle_aux_hidden_state_layer_ids": "all"}, "eagle_aux_hidden_state_layer_ids = 'all'; a list of"),
        (None, {"eagle_aux_hidden_state_layer_ids": [1]}, "has the shape of fc.weight [256, 768] in place of [256, 25"),
        (None, {"rope_parameters": None, "rope_scaling": {"rope_type": "spiral"}}, "the rope type spiral is not"),
        (without("d2t"), {"draft_vocab_size": 500}, "it lacks d2t"),
        (without("midlayer.mlp.up_proj.weight"), {}, "it lacks layers.0.mlp.up_proj.weight"),
        (without("midlayer.hidden_norm.weight"), {}, "holds a head of EAGLE-1: for it, method is eagle"),
        (resized("strange.weight", 4), {}, "it has strange.weight, for which the model has no use"),
        (resized("norm.weight", 4), {}, "has the shape of norm.weight [4] in place of [256]"),
        (resized("d2t", 500), {}, "d2t is stored as F32; supported are I64, I32"),
        (resized("model.fc.weight", 256, 768), {}, "holds both fc.weight and model.fc.weight, which mean the same"),
    ],
)
def test_heads_of_eagle3(edit: Edit | None, config: dict[str, Any], words: str, tmp_path: Path) -> None:
    tensors = heads.eagle3(DEMO_FOLDER, drafted=500)
    if edit is not None:
        edit(tensors)
    folder = heads.write_eagle3(tmp_path / "head", DEMO_FOLDER, tensors, **config)
    said = refusal(config_with(folder, "eagle3"))
    assert words in said and said.startswith(f"model: {folder}: "), said


def test_a_head_of_another_kind(tmp_path: Path) -> None:
    one = heads.write_eagle(tmp_path / "one", DEMO_FOLDER, heads.eagle(DEMO_FOLDER))
    three = heads.write_eagle3(tmp_path / "three", DEMO_FOLDER, heads.eagle3(DEMO_FOLDER))
    assert "holds a head of EAGLE-1: for it, method is eagle" in refusal(config_with(one, "eagle3"))
    assert "holds a head of EAGLE-3: for it, method is eagle3" in refusal(config_with(three, "eagle"))
    assert "num_speculative_tokens: 1 is more than the 0 heads" in refusal(config_with(three, "medusa", 1))
    assert "there is no folder /none" in refusal(config_with(Path("/none"), "eagle"))
    (three / "model.safetensors").write_bytes(b"")
    assert "is broken or cut off" in refusal(config_with(three, "eagle3"))


def test_heads_of_medusa(tmp_path: Path) -> None:
    tensors = heads.medusa(DEMO_FOLDER)
    folder = heads.write_medusa(tmp_path / "good", tensors)
    assert find_model(config_with(folder, "medusa"))
    assert "num_speculative_tokens: 4 is more than the 3 heads in" in refusal(config_with(folder, "medusa", 4))
    for number, (edit, words) in enumerate(
        (
            (without("1.0.linear.bias"), "lacks heads.1.blocks.0.bias, as other heads have it"),
            (resized("2.1.weight", 1000, 256), "heads.2.out.weight has the shape [1000, 256], and the model that it"),
            (resized("0.0.linear.weight", 8, 8), "heads.0.blocks.0.weight has the shape [8, 8]"),
            (resized("token_map", 8), "has a token_map, which is not supported"),
            (resized("extra", 8), "holds extra, which is no tensor of Medusa's heads"),
        )
    ):
        changed = dict(tensors)
        edit(changed)
        assert words in refusal(config_with(heads.write_medusa(tmp_path / str(number), changed), "medusa"))


def test_models_without_layers_of_their_own(tmp_path: Path) -> None:
    said = refusal(config_with(None, "mtp"))
    assert said == ("method: mtp: LlamaForCausalLM has no layers for it that could be computed; MiMoForCausalLM has")
    qwen2 = checkpoint("qwen2", tmp_path)
    bare = heads.write_mimo(tmp_path / "bare", qwen2, {})
    assert "have no model.mtp_layers.0.*" in refusal(config_with(None, "mtp", model=bare))
    tensors = heads.mtp(qwen2)
    del tensors["model.mtp_layers.0.input_proj.weight"]
    lacking = heads.write_mimo(tmp_path / "lacking", qwen2, tensors)
    assert "it lacks layers.0.input_proj.weight" in refusal(config_with(None, "mtp", model=lacking))
    whole = heads.write_mimo(tmp_path / "whole", qwen2, heads.mtp(qwen2))
    assert find_model(config_with(None, "mtp", model=whole))
    assert find_model(make_config({"model": str(whole), "max_model_len": 128})), "it can be served without drafts"


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, (1, 2, 2)),
        ({"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, (0, 2, 4)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}, (1, 2, 4)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (1, 2, 2)),
    ],
)
def test_which_layers_are_read(config: dict[str, Any], layers: tuple[int, ...], tmp_path: Path) -> None:
    """In `eagle_config` those whose output is read are counted, at the top those whose input is."""
    folder = heads.write_eagle3(tmp_path / "head", DEMO_FOLDER, heads.eagle3(DEMO_FOLDER), **config)
    shape = found(folder, "eagle3").shape
    assert isinstance(shape, RecurrentShape) and shape.states.layers == layers


def test_what_heads_share_with_the_model(tmp_path: Path) -> None:
    shape = found(
        heads.write_eagle3(tmp_path / "a", DEMO_FOLDER, heads.eagle3(DEMO_FOLDER, drafted=50)), "eagle3"
    ).shape
    assert isinstance(shape, RecurrentShape) and shape.own_head and shape.mapped and not shape.own_embeddings
    shape = found(heads.write_eagle(tmp_path / "b", DEMO_FOLDER, heads.eagle(DEMO_FOLDER)), "eagle").shape
    assert isinstance(shape, RecurrentShape) and not (shape.own_head or shape.mapped or shape.own_embeddings)
    tensors = heads.medusa(DEMO_FOLDER, blocks=2)
    shape = found(heads.write_medusa(tmp_path / "c", tensors), "medusa").shape
    assert isinstance(shape, MedusaShape) and (shape.heads, shape.blocks, shape.biased) == (3, 2, True)
    own = {name: tensor for name, tensor in tensors.items() if "linear" in name}
    shape = found(heads.write_medusa(tmp_path / "d", own), "medusa").shape
    assert isinstance(shape, MedusaShape) and shape.heads == 3 and not shape.own_outs


def test_words_that_lead_nowhere(tmp_path: Path) -> None:
    """What stands in a tensor is seen by the worker alone."""
    tensors = heads.eagle3(DEMO_FOLDER, drafted=50)
    tensors["d2t"][-1] = 5000
    config = config_with(heads.write_eagle3(tmp_path / "head", DEMO_FOLDER, tensors), "eagle3")
    drafter = load_drafter(config, find_model(config), None)
    assert drafter is not None and drafter.head is not None
    with pytest.raises(ConfigError, match=r"^--speculative-config: model: .*d2t does not lead to different words"):
        make_proposer(config, drafter.head, 16, 128, _Target())


class _Target(CpuModel):
    """As much of a model as is needed."""

    def __init__(self) -> None:
        self.dtype = self.precision = torch.float32
        self.batch_invariant = False
