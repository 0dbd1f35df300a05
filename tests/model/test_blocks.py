"""Drafters of blocks (DFlash) that do not fit, or are another kind: one line that names the field or the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.heads.formats import BlockShape
from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.models import heads

from .test_heads import Edit, config_with, found, refusal, resized, without


@pytest.mark.parametrize(
    ("edit", "own", "config", "words"),
    [
        (None, {}, {"hidden_size": 128}, "says hidden_size = 128, and the model that it drafts for has 256"),
        (None, {}, {"vocab_size": 32000}, "says vocab_size = 32000, and the model that it drafts for has 2048"),
        (None, {}, {"num_hidden_layers": 3, "layer_types": None}, "it lacks layers.2.input_layernorm.weight"),
        (None, {}, {"architectures": ["DFlash2DraftModel"]}, "architecture DFlash2DraftModel are not supported; those"),
        (None, {}, {"block_size": None}, "says block_size = None; a whole number from 1"),
        (None, {"block_size": "16"}, {}, "dflash_config says block_size = '16'; a whole number from 1"),
        (None, {"mask_token_id": 2048}, {}, "dflash_config says mask_token_id = 2048; a word of the model's 2048"),
        (None, {"mask_token_id": None}, {}, "says mask_token_id = None; a word of the model's 2048"),
        (None, {"target_layer_ids": [1, 4]}, {}, "target_layer_ids = [1, 4]; layers of the model, which has 4"),
        (None, {"target_layer_ids": "all"}, {}, "target_layer_ids = 'all'; a list of layers"),
        (None, {"target_layer_ids": [1]}, {}, "has the shape of fc.weight [256, 512] in place of [256, 256]"),
        (None, {"projector_type": "domino"}, {}, "says projector_type = 'domino', which is not supported"),
        (None, {"use_swa": True}, {}, "says use_swa = True, which is not supported"),
        (None, {"output_multiplier": 0.5}, {}, "says output_multiplier = 0.5, which is not supported"),
        (None, {"final_logit_softcapping": 20.0}, {}, "says final_logit_softcapping = 20.0, which is not supported"),
        (None, {}, {"layer_types": ["sliding_attention"] * 2}, "says sliding_window = None; the window of the layers"),
        (None, {}, {"layer_types": ["full_attention"]}, "layer_types = ['full_attention']; a list of 2 times"),
        (
            None,
            {"causal": False},
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64},
            "dflash_config says causal = False; true for layers of sliding_attention is needed",
        ),
        (None, {}, {"hidden_act": "relu"}, "says hidden_act = 'relu'; one of silu"),
        (without("hidden_norm.weight"), {}, {}, "it lacks hidden_norm.weight"),
        (without("layers.1.self_attn.k_norm.weight"), {}, {}, "it lacks layers.1.self_attn.k_norm.weight"),
        (resized("fc.weight", 256, 768), {}, {}, "has the shape of fc.weight [256, 768] in place of [256, 512]"),
        (resized("mask_hidden", 256), {}, {}, "it has mask_hidden, for which the model has no use"),
    ],
)
def test_what_does_not_fit(
    edit: Edit | None, own: dict[str, Any], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    tensors = heads.dflash(DEMO_FOLDER)
    if edit is not None:
        edit(tensors)
    folder = heads.write_dflash(tmp_path / "head", DEMO_FOLDER, tensors, own, **config)
    said = refusal(config_with(folder, "dflash"))
    assert words in said and said.startswith(f"model: {folder}: "), said


def test_more_drafts_than_a_block_holds(tmp_path: Path) -> None:
    folder = heads.write_dflash(tmp_path / "head", DEMO_FOLDER, heads.dflash(DEMO_FOLDER))
    assert find_model(config_with(folder, "dflash", 7))
    said = refusal(config_with(folder, "dflash", 8))
    assert said == f"num_speculative_tokens: 8 is more than the 7 that blocks of 8 hold in {folder}"
    (folder / "mask_embedding.pt").touch()
    assert "has mask_embedding.pt, which is not supported" in refusal(config_with(folder, "dflash"))


@pytest.mark.parametrize(
    ("own", "config", "layers", "causal"),
    [
        ({}, {}, (1, 2), (False, False)),
        ({"target_layer_ids": [2, 0]}, {}, (3, 1), (False, False)),
        ({"target_layer_ids": None}, {"target_layer_ids": [0, 3]}, (1, 4), (False, False)),
        ({"target_layer_ids": None}, {"aux_hidden_state_layer_ids": [0, 4]}, (0, 4), (False, False)),
        ({"target_layer_ids": None}, {}, (2, 2), (False, False)),
        ({"causal": True}, {}, (1, 2), (True, True)),
        ({"causal": True}, {"is_causal": False}, (1, 2), (False, False)),
        ({}, {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}, (1, 2), (True, False)),
    ],
)
def test_what_is_read(
    own: dict[str, Any], config: dict[str, Any], layers: tuple[int, ...], causal: tuple[bool, ...], tmp_path: Path
) -> None:
    """Which layers of the model, in which order, and which of its own see only what is before."""
    folder = heads.write_dflash(tmp_path / "head", DEMO_FOLDER, heads.dflash(DEMO_FOLDER), own, **config)
    shape = found(folder, "dflash").shape
    assert isinstance(shape, BlockShape) and (shape.block, shape.mask) == (8, 7)
    assert (shape.states.layers, shape.causal) == (layers, causal)
    assert shape.windows == ((9, None) if "sliding_window" in config else (None, None))
