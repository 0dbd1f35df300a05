"""Rotations that follow a text's length: one length counts for all texts of a server, whatever stands in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.twin import shrink
from tests.support.models.checkpoints import write_tokenizer
from tests.support.models.greedy import assert_greedy, greedy, reference
from tests.worker.driver import Driver, Sequence, config_for, make_runner

from .loaded import BY_TRANSFORMERS

ORIGINAL, LONGEST = 48, 128  # tokens; the trial at load has fewer than the first
ROPE = {
    **{"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": ORIGINAL},
    **{
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0],
        "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0],
    },
    **{"partial_rotary_factor": 1.0, "short_mscale": 1.1, "long_mscale": 1.4, "factor": 4.0},
}
TEXTS = [torch.randint(3, 380, (size,), generator=torch.Generator().manual_seed(size)).tolist() for size in (60, 9, 75)]


@pytest.fixture(params=["phi3", "phimoe"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = shrink(AutoConfig.for_model(request.param, pad_token_id=0))
    config.rope_parameters, config.sliding_window = ROPE, None
    config.original_max_position_embeddings, config.max_position_embeddings = ORIGINAL, LONGEST
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    verify.randomise(model)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


def answers(folder: Path, length: int, texts: list[list[int]]) -> list[list[int]]:
    options: dict[str, Any] = {**BY_TRANSFORMERS, "max_model_len": length}
    runner = make_runner(config_for(folder, **options), rows=4)
    return Driver(runner, budget=21, seed=1).run([Sequence(text, 8) for text in texts])


def test_long_texts_in_parts_and_short_ones_beside_them(folder: Path) -> None:
    model = reference(folder)
    found = answers(folder, LONGEST, TEXTS)
    assert_greedy(model, [TEXTS[0], TEXTS[2]], [found[0], found[2]], 8)
    assert answers(folder, LONGEST, TEXTS[1:2]) == [found[1]]
    short = answers(folder, ORIGINAL, TEXTS[1:2])
    assert short == [greedy(model, TEXTS[1], short[0])]
