"""Ling 3.0 and Ring 3.0: logits and answers are those of their formulas, whatever a step holds of a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from tests.support.models.census import prompts, served, tight
from tests.support.models.own_code.bailing_v3 import FLASH, LAYERS, TINY, UNEVEN, Reference, write

from ..loaded import load, logits_of

LONG = 40  # tokens of an answer, of which memory runs out
LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
KINDS = {"tiny": TINY, "flash": FLASH, "uneven": UNEVEN}


@pytest.fixture(scope="module", params=[pytest.param("tiny", marks=pytest.mark.slow), "flash"])
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(request.param, tmp_path_factory.mktemp(request.param))


def written(kind: str, folder: Path) -> Path:
    write(folder, KINDS[kind])
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_its_formulas(kind: str, tmp_path: Path) -> None:
    """And other ones without its limits, so that it matters that they are kept to."""
    folder, text = written(kind, tmp_path), list(range(3, 3 + verify.DECODED + 5))
    wanted = Reference(folder).logits(text)
    off = (logits_of(folder) - wanted).abs().max() / wanted.std()
    assert off < 1e-3
    for name in LIMITS:
        if (fields := KINDS[kind])[name]:
            (folder / "config.json").write_text(json.dumps(fields | {name: None}))
            assert (Reference(folder).logits(text) - wanted).abs().max() > 0.1 * wanted.std()


def test_answers_in_a_crowd_are_those_of_its_formulas(crowded: Path) -> None:
    """In chunks, preempted, and once more."""
    (first, again), preempted, _, way = served(crowded, LONG, **tight(crowded))
    alone = Reference(crowded)
    assert first == [alone.greedy(ids, answer) for ids, answer in zip(prompts(), first, strict=True)]
    assert again == first and preempted and way == "rows"


def test_layers_that_draft_are_passed_over(tmp_path: Path) -> None:
    """They have the number behind the last, whichever that is."""
    folder = written("tiny", tmp_path)
    tensors, file = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    save_file({**tensors, f"model.layers.{LAYERS}.eh_proj.weight": torch.ones(2)}, file, {"format": "pt"})
    load(folder)
    save_file({**tensors, f"model.layers.{LAYERS + 1}.eh_proj.weight": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"it has model\.layers\.9\.eh_proj\.weight, for which the model has no use"):
        load(folder)
