"""Encoders in GGUF files: vectors are those of the checkpoint that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorserve import LLM
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.options.config import ConfigError, make_config
from tests.support.models.embedders import cosines, vectors, write_model
from tests.support.models.gguf.encoders import TEXTS, write_encoder
from tests.support.models.gguf.files import convert


@pytest.mark.parametrize(
    ("family", "cased", "mode", "method"), [("bert", True, "cls", 2), ("nomic_bert", False, "mean", 1)]
)
def test_vectors_of_a_file(family: str, cased: bool, mode: str, method: int, tmp_path: Path) -> None:
    name = family.replace("_", "-")
    path = write_encoder(family, tmp_path, cased, **{f"{name}.pooling_type": method})
    wanted = vectors(tmp_path, TEXTS, mode)
    with LLM(str(path), device="cpu", threads=1, dtype="float32", max_num_seqs=4) as llm:
        found = llm.embed(TEXTS, use_tqdm=False)
    assert [one.prompt_token_ids for one in found] == [ids_of(tmp_path, text) for text in TEXTS]
    assert cosines([one.outputs.embedding for one in found], wanted).min() > 0.99999
    assert cosines(wanted[0], wanted[1]) < 0.999


def ids_of(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def test_the_tokenizer_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    path = write_encoder("bert", tmp_path)
    model = find_model(make_config({"model": str(path), "device": "cpu"}))
    ours, theirs = (
        json.loads((folder / "tokenizer.json").read_text()) for folder in (Path(model.tokenizer_folder), tmp_path)
    )
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert model.pooling is not None and model.pooling.methods == ["mean"] and model.max_model_len == 130


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bert.pooling_type": 4}, "a head that ranks is not read"),
        ({"tokenizer.ggml.cls_token_id": 4000}, "tokenizer.ggml.cls_token_id"),
        ({"bert.attention.max_alibi_bias": 8.0}, "bert.attention.max_alibi_bias, which is not supported"),
    ],
)
def test_what_is_not_read(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write_encoder("bert", tmp_path, **fields)
    with pytest.raises(ConfigError, match=said):
        find_model(make_config({"model": str(path), "device": "cpu"}))


def test_a_decoder_whose_file_says_how_it_pools(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path, "CausalLM")
    path = tmp_path / "m.gguf"
    convert(tmp_path, path, lambda name: "F32", **{"qwen3.pooling_type": 3})
    wanted = vectors(tmp_path, TEXTS, "last")
    with LLM(str(path), device="cpu", threads=1, dtype="float32", max_num_seqs=4) as llm:
        found = llm.embed([{"prompt_token_ids": ids_of(tmp_path, text)} for text in TEXTS], use_tqdm=False)
    assert cosines([one.outputs.embedding for one in found], wanted).min() > 0.99999
