"""Texts for models that pool: marks around them stay where they are cut, and an end token is there if it is to be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.model.tokenizers.tokenizer import load_tokenizer
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topics.prompts import PairPrompt, TextPrompt
from actorserve.actors.renderer.pooled import PooledTexts, TooFewTokens, lowered
from tests.support.models.embedders import encode, write_model

TEXT = "The quick brown fox jumps over the lazy dog."
END = 0  # <|endoftext|>


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder = tmp_path_factory.mktemp("model")
    write_model("bert", folder)
    return resolve_model(make_config({"model": str(folder), "device": "cpu"}))


def test_marks_stay_where_a_text_is_cut(model: ModelInfo) -> None:
    texts, whole = PooledTexts(load_tokenizer(model), model), encode(Path(model.folder), TEXT)[0]
    assert texts.encode(TextPrompt(TEXT)) == (whole, 0)
    assert texts.encode_cut(TextPrompt(TEXT), 8, True) == ([*whole[:7], whole[-1]], 0)
    assert texts.encode_cut(TextPrompt(TEXT), 8, False) == ([whole[0], *whole[-7:]], 0)
    assert texts.encode_cut(TextPrompt("a"), 8, True) == texts.encode(TextPrompt("a"))
    assert texts.encode(TextPrompt(TEXT)) == (whole, 0)  # nothing of the cut stays
    with pytest.raises(TooFewTokens):
        texts.encode_cut(TextPrompt(TEXT), 1, True)


def test_the_second_of_a_pair_is_told_apart(model: ModelInfo) -> None:
    texts = PooledTexts(load_tokenizer(model), model)
    ids, kinds = encode(Path(model.folder), TEXT, "a fox")
    assert texts.encode(PairPrompt(TEXT, "a fox")) == (ids, kinds.index(1))
    cut, second = texts.encode_cut(PairPrompt(TEXT, "a fox"), 12, True)
    assert len(cut) == 12 and cut[second:] == ids[kinds.index(1) :]  # the longer one is cut


def test_the_second_of_a_pair_is_cut_alone(model: ModelInfo) -> None:
    texts = PooledTexts(load_tokenizer(model), model)
    ids, kinds = encode(Path(model.folder), TEXT, TEXT)
    second = kinds.index(1)
    wanted = [*ids[: second + 4], ids[-1]], second
    assert texts.encode_cut(PairPrompt(TEXT, TEXT, most=4), 99, True) == wanted
    assert texts.encode_cut(PairPrompt(TEXT, TEXT, most=99), 99, True) == (ids, second)
    small = texts.encode(TextPrompt(TEXT.lower(), add_special_tokens=False))[0]
    cut, _ = texts.encode_cut(lowered(PairPrompt(TEXT, TEXT.upper(), most=4)), 99, True)
    assert cut[-5:] == [*small[:4], ids[-1]]


def test_a_document_is_cut_by_its_own_tokens(model: ModelInfo) -> None:
    """Of a model without a head, which reads a text by itself."""
    texts, whole = PooledTexts(load_tokenizer(model), model), encode(Path(model.folder), TEXT)[0]
    assert texts.encode_cut(TextPrompt(TEXT, most=4), 99, True) == ([*whole[:5], whole[-1]], 0)
    assert texts.encode_cut(lowered(TextPrompt(TEXT, most=99)), 99, True) == texts.encode(TextPrompt(TEXT.lower()))
    assert texts.encode_cut(TextPrompt(TEXT, most=99), 8, True) == ([*whole[:7], whole[-1]], 0)


def test_an_end_token_that_only_the_config_knows(model: ModelInfo, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((Path(model.folder) / name).read_text())
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about | {"add_eos_token": True}))
    own = msgspec.structs.replace(model, tokenizer_folder=str(tmp_path))
    texts, whole = PooledTexts(load_tokenizer(own), own), encode(Path(model.folder), TEXT)[0]
    assert texts.encode(TextPrompt(TEXT)) == ([*whole, END], 0)
    assert texts.encode(TextPrompt(TEXT, add_special_tokens=False))[0] == whole[1:-1]
    assert texts.encode_cut(TextPrompt(TEXT), 9, True)[0] == [*whole[:7], whole[-1], END]


def test_small_letters() -> None:
    assert lowered(TextPrompt("Ab")) == TextPrompt("ab")
    assert lowered(PairPrompt("Ab", "Cd")) == PairPrompt("ab", "cd")
