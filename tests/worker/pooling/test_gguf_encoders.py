"""Encoders in GGUF files: vectors are those of the checkpoint that they were made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actorserve import LLM
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.gguf.header import read_header
from actorserve.actors.model.gguf.tokenizer import make_tokenizer
from actorserve.actors.model.vocabularies.proto import read_sentencepiece
from actorserve.actors.model.vocabularies.sentencepiece import from_sentencepiece
from actorserve.actors.model.vocabularies.special import read_about
from actorserve.actors.options.config import ConfigError, make_config
from tests.support.models.embedders import cosines, vectors, write_model
from tests.support.models.gguf.encoders import TEXTS, write_encoder
from tests.support.models.gguf.files import convert, tiny_model

VOCABULARIES = Path(__file__).parents[2] / "model" / "vocabularies" / "vocabulary_files"


@pytest.mark.parametrize(
    ("family", "cased", "mode", "method"), [("bert", True, "cls", 2), ("nomic_bert", False, "mean", 1)]
)
def test_vectors_of_a_file(family: str, cased: bool, mode: str, method: int, tmp_path: Path) -> None:
    name = family.replace("_", "-")
    path = write_encoder(family, tmp_path, cased, 1 + (not cased), **{f"{name}.pooling_type": method})
    wanted = vectors(tmp_path, TEXTS, mode)
    with LLM(str(path), in_process=True, device="cpu", threads=1, dtype="float32", max_num_seqs=4) as llm:
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
    ("cased", "flags", "written"),
    [
        (False, {}, (True, True)),
        (True, {}, (False, False)),
        (False, {"lowercase": False}, (False, False)),
        (True, {"lowercase": True}, (True, True)),
        (True, {"lowercase": True, "strip_accents": False}, (True, False)),
    ],
)
def test_whether_texts_are_written_small(
    cased: bool, flags: dict[str, bool], written: tuple[bool, bool], tmp_path: Path
) -> None:
    """As the file says, or, of one that does not, as its vocabulary has it."""
    named = {f"tokenizer.ggml.normalizer.{name}": flag for name, flag in flags.items()}
    made, _ = make_tokenizer(read_header(write_encoder("bert", tmp_path, cased, **named)))
    assert (made["normalizer"]["lowercase"], made["normalizer"]["strip_accents"]) == written


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bert.pooling_type": 4}, r"ranks \(bert.pooling_type\), and cls.weight, cls.bias, cls.output.weight, "),
        ({"tokenizer.ggml.cls_token_id": "[CLS]"}, "tokenizer.ggml.cls_token_id"),
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
    with LLM(str(path), in_process=True, device="cpu", threads=1, dtype="float32", max_num_seqs=4) as llm:
        found = llm.embed([{"prompt_token_ids": ids_of(tmp_path, text)} for text in TEXTS], use_tqdm=False)
    assert cosines([one.outputs.embedding for one in found], wanted).min() > 0.99999


def test_a_vocabulary_of_unigram(tmp_path: Path) -> None:
    """As files of XLM-R and T5 have it: what is made of SentencePiece's own file cuts texts in the same way."""
    from tokenizers import Tokenizer

    file = VOCABULARIES / "unigram.model"
    model = read_sentencepiece(file, file.read_bytes())
    (tmp_path / "theirs").mkdir()
    shutil.copy(file, tmp_path / "theirs" / "tokenizer.model")
    theirs = from_sentencepiece(model, read_about(tmp_path / "theirs"))
    fields = {
        "model": "t5",
        "tokens": [piece.text for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.kind for piece in model.pieces],
        "precompiled_charsmap": list(model.characters),
        "remove_extra_whitespaces": model.fewer_spaces,
        "add_space_prefix": model.dummy_prefix,
        "unknown_token_id": model.unknown,
        "eos_token_id": model.end,
        "add_eos_token": True,
        **dict.fromkeys(("pre", "merges", "bos_token_id")),
    }
    made = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    header = read_header(tiny_model(tmp_path, made, words=len(model.pieces)))
    ours, wanted = (Tokenizer.from_str(json.dumps(one)) for one in (make_tokenizer(header)[0], theirs))
    for text in [*TEXTS, "  spaces   here ", "ﬁne ½ ＡＢ", "hello<unk>world", ""]:
        ids = wanted.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).ids == [*ids, model.end], text
        assert ours.decode(ids) == wanted.decode(ids)
    broken = {**made, "tokenizer.ggml.scores": [0.5]}
    with pytest.raises(ConfigError, match=r"tokenizer.ggml.scores: a list of \d+ numbers"):
        make_tokenizer(read_header(tiny_model(tmp_path, broken, words=len(model.pieces))))
