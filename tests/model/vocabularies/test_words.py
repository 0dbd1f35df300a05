"""Tokenizers of word lists: vocab.json with merges.txt, and vocab.txt, against the classes of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import (
    BertTokenizer,
    CodeGenTokenizer,
    GPT2Tokenizer,
    MPNetTokenizer,
    Qwen2Tokenizer,
    RobertaTokenizer,
)

from actorserve.actors.model.vocabularies.folder import make

from .test_vocabularies import TEXTS, folder_of, made

pytestmark = pytest.mark.usefixtures("cache")

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def words_folder(folder: Path, config: dict[str, Any]) -> tuple[Path, dict[str, int], list[str]]:
    """vocab.json and merges.txt of the bytes' vocabulary; (folder, words, merges)."""
    inner = json.loads(
        made(
            folder_of(folder, "small.tiktoken", "x.tiktoken", {"tokenizer_class": "ChatGLM4Tokenizer"}), "x.tiktoken"
        ).to_str()
    )["model"]
    words = inner["vocab"] | {
        text: len(inner["vocab"]) + at for at, text in enumerate(["<s>", "</s>", "<unk>", "<pad>"])
    }
    words |= {"<mask>": len(words), "<|endoftext|>": len(words) + 1}
    merges = [" ".join(pair) for pair in inner["merges"]]
    (folder / "x.tiktoken").unlink()
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder, words, merges


@pytest.mark.parametrize("theirs", [GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer, RobertaTokenizer])
@pytest.mark.parametrize("space", [False, True])
def test_words_with_merges_are_as_transformers_has_them(
    tmp_path: Path, theirs: Callable[..., Any], space: bool
) -> None:
    name = getattr(theirs, "__name__", "")
    config = {"tokenizer_class": name, "add_prefix_space": space, "add_bos_token": False}
    folder, words, merges = words_folder(tmp_path / "m", config)
    ours = made(folder, "vocab.json", "merges.txt")
    known = theirs(vocab=words, merges=[tuple(line.split(" ")) for line in merges], add_prefix_space=space)
    for text in [*TEXTS, "a<|endoftext|>b <|endoftext|>"]:
        ids = known(text)["input_ids"]
        assert ours.encode(text).ids == ids, text
        assert ours.decode(ids, skip_special_tokens=True) == known.decode(ids, skip_special_tokens=True)
    assert pair_of(ours) == pair_of(known.backend_tokenizer)


def pair_of(known: Tokenizer) -> tuple[list[int], list[int]]:
    """Two texts as rerankers read them: their tokens, and which text each belongs to."""
    both = known.encode("the fox", "hello")
    return both.ids, both.type_ids


@pytest.mark.parametrize("lower", [False, True])
def test_word_pieces_are_as_transformers_has_them(tmp_path: Path, lower: bool) -> None:
    words = [*BERT, *pieces()]
    values = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    ours = made(pieces_folder(tmp_path / "bert", words, values), "vocab.txt")
    known = BertTokenizer(vocab={word: at for at, word in enumerate(words)}, do_lower_case=lower)
    for text in [*TEXTS, "the fox[MASK] [SEP]"]:
        ids = known(text)["input_ids"]
        assert ours.encode(text).ids == ids, text
        assert ours.decode(ids) == known.backend_tokenizer.decode(ids)
    assert pair_of(ours) == pair_of(known.backend_tokenizer)


def pieces() -> list[str]:
    letters = sorted({letter for text in TEXTS for letter in text.lower() + text if not letter.isspace()})
    return [*letters[::2], *(f"##{letter}" for letter in letters), "the", "fox", "hello", "##ing"]


def pieces_folder(folder: Path, words: list[str], config: dict[str, Any], model_type: str = "bert") -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def test_only_a_newline_ends_a_word_piece(tmp_path: Path) -> None:
    """bert-base-chinese has U+2028 as a piece of its own."""
    words = [*BERT, "a", "\u2028", "\x85x", "b", "\x0c"]
    folder = pieces_folder(tmp_path / "bert", words, {"tokenizer_class": "BertTokenizer"})
    known = BertTokenizer.from_pretrained(folder).get_vocab()  # it drops spaces of pieces, which no text has
    numbers = {word: at for at, word in enumerate(words)}
    assert made(folder, "vocab.txt").get_vocab() == numbers
    assert {word: known[word] for word in words if word.strip()}.items() <= numbers.items()


@pytest.mark.parametrize(
    ("config", "model_type"),
    [
        ({"tokenizer_class": "DistilBertTokenizer"}, "distilbert"),
        ({"tokenizer_class": "ElectraTokenizerFast"}, "electra"),
        ({}, "distilbert"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "electra"),
    ],
)
def test_the_kin_of_bert_cut_as_it_does(tmp_path: Path, config: dict[str, str], model_type: str) -> None:
    words = [*BERT, *pieces()]
    folder = pieces_folder(tmp_path / "m", words, config, model_type)
    known = BertTokenizer(vocab={word: at for at, word in enumerate(words)})
    assert pair_of(made(folder, "vocab.txt")) == pair_of(known.backend_tokenizer)
    about = json.loads(make([folder / "vocab.txt"])["tokenizer_config.json"])
    assert (about["cls_token"], about["sep_token"]) == ("[CLS]", "[SEP]")


def test_mpnet_has_marks_of_its_own(tmp_path: Path) -> None:
    words = ["<s>", "<pad>", "</s>", *pieces(), "[UNK]", "<mask>"]
    ours = made(pieces_folder(tmp_path / "m", words, {}, "mpnet"), "vocab.txt")
    known = MPNetTokenizer(vocab={word: at for at, word in enumerate(words)})
    for text in TEXTS:
        assert ours.encode(text).ids == known(text)["input_ids"], text
    assert pair_of(ours) == pair_of(known.backend_tokenizer)
