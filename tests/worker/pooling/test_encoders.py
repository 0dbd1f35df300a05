"""Hidden states of each family of encoders are those of transformers, each text alone; and so are scores of heads."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.options.config import Config, make_config
from actorserve.actors.worker.pooling.encoder import Encoder, Text, Way, by_length
from actorserve.actors.worker.pooling.load import load_encoder
from tests.support.models.embedders import (
    FAMILIES,
    SENTENCES,
    cosines,
    encode,
    hidden_states,
    logits,
    write_model,
)

PADDED = ("mpnet", "deberta-v2")  # whose attention looks at places in the row
PAIRS: list[tuple[str, str | None]] = [(SENTENCES[1], SENTENCES[0]), (SENTENCES[4], SENTENCES[2]), (SENTENCES[0], None)]


def options(folder: Path, **fields: object) -> tuple[Config, ModelInfo]:
    given = {"model": str(folder), "device": "cpu", "runner": "pooling", "dtype": "float32", **fields}
    config = make_config({"model_impl": "transformers", **given})
    return config, resolve_model(config)


def load(folder: Path, **fields: object) -> Encoder:
    config, info = options(folder, **fields)
    assert info.pooling is not None
    return load_encoder(config, info, info.pooling)


def text(folder: Path, first: str, second: str | None = None) -> Text:
    ids, types = encode(folder, first, second)
    return Text(torch.tensor(ids), types.index(1) if 1 in types else 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_each_text_alone(family: str, tmp_path: Path) -> None:
    write_model(family, tmp_path)
    with torch.inference_mode():
        model = load(tmp_path)
        found = model.hidden([text(tmp_path, sentence) for sentence in SENTENCES])
    assert model.way is (Way.PADDED if family in PADDED else Way.FLAT)
    expected = hidden_states(tmp_path, SENTENCES)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4
        assert cosines(mine.mean(0), theirs.mean(0)) > 0.99999


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "albert", "electra", "modernbert"])
def test_a_head_sees_one_text_at_a_time(family: str, tmp_path: Path) -> None:
    """Pairs too, whose texts are told apart where the model does that."""
    write_model(family, tmp_path, "SequenceClassification")
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [text(tmp_path, *pair) for pair in PAIRS]
        found = [model.scores(states, own.ids) for states, own in zip(model.hidden(texts), texts, strict=True)]
    for mine, theirs in zip(found, logits(tmp_path, "SequenceClassification", PAIRS), strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4


def test_a_head_of_tokens(tmp_path: Path) -> None:
    write_model("bert", tmp_path, "TokenClassification")
    with torch.inference_mode():
        model = load(tmp_path)
        own = text(tmp_path, SENTENCES[0])
        found = model.scores(model.hidden([own])[0], own.ids)
    (theirs,) = logits(tmp_path, "TokenClassification", [(SENTENCES[0], None)])
    assert tuple(found.shape) == theirs.shape
    assert np.abs(found.numpy() - theirs).max() < 1e-4


def test_int8_is_near(tmp_path: Path) -> None:
    write_model("bert", tmp_path, hidden_size=64, intermediate_size=256)
    with torch.inference_mode():
        found = load(tmp_path, quantization="int8").hidden([text(tmp_path, one) for one in SENTENCES])
    expected = hidden_states(tmp_path, SENTENCES)
    near = cosines([one.mean(0) for one in found], [one.mean(0) for one in expected])
    assert 0.99 < near.min() < 1 - 1e-9  # and not the same


def test_a_way_that_is_wrong_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MPNet's attention adds what it knows of places in the row, and says so in the log."""
    write_model("mpnet", tmp_path)
    with caplog.at_level(logging.INFO), torch.inference_mode():
        load(tmp_path)
    assert "padded" in caplog.text and "not flat" in caplog.text


def test_texts_of_like_lengths_go_together() -> None:
    sizes = [3, 100, 4, 90, 3, 50]
    groups = by_length(sizes)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    for group in groups:
        own = [sizes[index] for index in group]
        assert max(own) * len(own) <= 1.25 * sum(own)
    assert len(groups) < len(sizes)
