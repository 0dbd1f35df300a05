"""Tokenizers without tokenizer.json: the ids, texts and refusals of what is made of their files.

What the formats' own libraries say stands in vocabulary_files/expected.json; make.py beside it had it from them.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import pytest
from tokenizers import Tokenizer
from transformers import LlamaTokenizer

from actorserve.actors.detokenizer.decoder import decoder_factory
from actorserve.actors.model.tokenizers.tokenizer_parts import SPACE, byte_pairs, merges_by_score
from actorserve.actors.model.vocabularies.folder import make
from actorserve.actors.model.vocabularies.proto import read_sentencepiece

pytestmark = pytest.mark.usefixtures("cache")

FILES = Path(__file__).parent / "vocabulary_files"
EXPECTED = json.loads((FILES / "expected.json").read_text())
TEXTS: list[str] = EXPECTED["texts"]
PLAIN = {"add_bos_token": False, "legacy": True}
LLAMA = {"tokenizer_class": "LlamaTokenizer", **PLAIN}
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the file here, its name in a folder, tokenizer_config.json
    "llama": ("llama.model", "tokenizer.model", LLAMA),
    "gemma": ("gemma.model", "tokenizer.model", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False}),
    "bare": ("bare.model", "tokenizer.model", {"add_bos_token": False}),
    "unigram": ("unigram.model", "tokenizer.model", PLAIN),
    "qwen": ("small.tiktoken", "qwen.tiktoken", {"tokenizer_class": "QWenTokenizer"}),
    "llama3": ("small.tiktoken", "tokenizer.model", {"add_bos_token": False}),
    "kimi": ("small.tiktoken", "tiktoken.model", {"tokenizer_class": "TikTokenTokenizer"}),
    "tekken": ("tekken.json", "tekken.json", {}),
    "tekken-old": ("tekken-old.json", "tekken.json", {}),
}
OTHERS = {"unigram": ["<0x41>"]}  # the library takes it for a byte's piece, as transformers does


def folder_of(folder: Path, source: str | Path, name: str, config: dict[str, Any], **others: Any) -> Path:
    """A folder with a vocabulary; `others` are JSON files by their stems."""
    folder.mkdir(exist_ok=True)
    shutil.copy(FILES / source, folder / name)
    for stem, values in {"tokenizer_config": config, "config": {"model_type": "llama"}, **others}.items():
        (folder / f"{stem}.json").write_text(json.dumps(values))
    return folder


def made(folder: Path, *names: str) -> Tokenizer:
    return Tokenizer.from_str(make([folder / name for name in names])["tokenizer.json"])


def tokenizer_of(form: str, tmp_path: Path, **config: Any) -> Tokenizer:
    source, name, known = FORMS[form]
    return made(folder_of(tmp_path / form, source, name, known | config), name)


# --- as the formats' own libraries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_those_of_the_formats_own_library(form: str, tmp_path: Path) -> None:
    known = tokenizer_of(form, tmp_path)
    for text, ids in zip(TEXTS, EXPECTED["ids"][form], strict=True):
        if text not in OTHERS.get(form, []) and (form != "qwen" or is_normalized("NFC", text)):
            assert known.encode(text).ids == ids, text


@pytest.mark.parametrize("form", EXPECTED["decoded"])
def test_texts_are_those_of_sentencepiece(form: str, tmp_path: Path) -> None:
    known = tokenizer_of(form, tmp_path)
    for ids, text in zip(EXPECTED["ids"][form], EXPECTED["decoded"][form], strict=True):
        if "\u2047" not in text:  # what SentencePiece shows for an unknown piece: here it is a special token
            assert known.decode(ids) == text


@pytest.mark.parametrize("form", FORMS)
def test_a_few_tokens_at_a_time_give_the_same_text(form: str, tmp_path: Path) -> None:
    known = tokenizer_of(form, tmp_path)
    make_decoder, dice = decoder_factory(known), random.Random(2)
    for ids in EXPECTED["ids"][form]:
        decoder, at, text = make_decoder(True), 0, ""
        while at < len(ids):
            end = at + dice.randint(1, 4)
            text += decoder.push(ids[at:end])
            at = end
        assert text + decoder.flush() == known.decode(ids)


def test_qwens_texts_are_brought_to_one_form(tmp_path: Path) -> None:
    known = tokenizer_of("qwen", tmp_path)
    assert known.encode("cafe\u0301").ids == known.encode("caf\u00e9").ids
    assert tokenizer_of("kimi", tmp_path).encode("cafe\u0301").ids != known.encode("caf\u00e9").ids


# --- tokens that stand for themselves --------------------------------------------------------------------------------


def test_numbers_of_special_tokens(tmp_path: Path) -> None:
    words = 599
    qwen, kimi = tokenizer_of("qwen", tmp_path), tokenizer_of("kimi", tmp_path)
    llama, tekken = tokenizer_of("llama3", tmp_path), tokenizer_of("tekken", tmp_path)
    assert [qwen.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>", "<|extra_204|>")] == [
        words,
        words + 2,
        words + 207,
    ]
    assert [kimi.token_to_id(f"<|reserved_token_{n}|>") for n in (words, words + 255)] == [words, words + 255]
    assert llama.token_to_id("<|begin_of_text|>") == words and llama.token_to_id("<|eot_id|>") == words + 9
    assert llama.token_to_id("<|reserved_special_token_247|>") == words + 255  # 256 in all
    assert [tekken.token_to_id(text) for text in ("<unk>", "[TOOL_CALLS]", "<SPECIAL_39>")] == [0, 5, 39]
    assert tekken.encode("a[INST]b").ids[1:3:1][1] == 3
    assert tekken.decode([5, 39], skip_special_tokens=True) == ""


def test_the_folder_names_tokens(tmp_path: Path) -> None:
    """added_tokens_decoder has the last word; a named token that is nowhere gets the next number."""
    told = {"701": {"content": "<|im_user|>", "special": False}, "703": {"content": "[EOS]", "special": True}}
    known = tokenizer_of("kimi", tmp_path, added_tokens_decoder=told, bos_token="[BOS]", add_bos_token=True)
    assert known.encode("<|im_user|>a[EOS]").ids[:2] == [855, 701]
    assert known.token_to_id("[EOS]") == 703 and known.token_to_id("<|reserved_token_701|>") is None
    assert known.decode([701, 703], skip_special_tokens=True) == "<|im_user|>"
    folder = folder_of(tmp_path / "m", "llama.model", "tokenizer.model", LLAMA, added_tokens={"<|new|>": 900})
    assert made(folder, "tokenizer.model").encode("<|new|>").ids[-1] == 900


def test_control_pieces_count_and_user_defined_ones_are_text(tmp_path: Path) -> None:
    known, plain = tokenizer_of("llama", tmp_path), tokenizer_of("gemma", tmp_path)
    mark = known.token_to_id("<|im_start|>")
    assert mark is not None and known.encode("<|im_start|>").ids[-1] == mark
    assert known.decode([mark], skip_special_tokens=True) == ""
    tool = plain.token_to_id("<|tool|>")
    assert tool is not None and plain.decode([tool], skip_special_tokens=True) == "<|tool|>"


@pytest.mark.parametrize(("flags", "ends"), [({}, (1, None)), ({"add_eos_token": True}, (1, 2)), (PLAIN, (None, None))])
def test_what_stands_before_and_behind_a_text(tmp_path: Path, flags: dict[str, Any], ends: tuple[Any, Any]) -> None:
    folder = folder_of(tmp_path / "m", "llama.model", "tokenizer.model", {"tokenizer_class": "LlamaTokenizer"} | flags)
    ids = made(folder, "tokenizer.model").encode("hello").ids
    inner = tokenizer_of("llama", tmp_path, legacy=False).encode("hello").ids
    assert ids == [end for end in (ends[0], *inner, ends[1]) if end is not None]


def test_only_the_first_word_has_a_space_as_transformers_has_it(tmp_path: Path) -> None:
    """`legacy: false`, against the class of transformers with the same words."""
    ours = tokenizer_of("llama", tmp_path, legacy=False)
    model = json.loads(ours.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    theirs = LlamaTokenizer(vocab=model["vocab"], merges=merges, legacy=False, add_bos_token=False)
    theirs.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    for text in [*TEXTS, "<|im_start|>user hello<|im_end|> there", "a<s>b</s> c"]:
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False), text
    before = tokenizer_of("llama", tmp_path, legacy=True)
    assert before.encode("<s>there").ids != ours.encode("<s>there").ids


def test_a_number_beyond_a_gap_stays(tmp_path: Path) -> None:
    told = {"620": {"content": "<|user|>", "special": True}}
    config = {"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": told}
    known = made(folder_of(tmp_path / "m", "small.tiktoken", "tokenizer.model", config), "tokenizer.model")
    assert known.encode("<|user|>a").ids == [620, *known.encode("a").ids]


def test_a_word_that_is_a_token_need_not_be_merged(tmp_path: Path) -> None:
    """As tiktoken has it: no merge leads to this one."""
    folder = folder_of(tmp_path / "m", "small.tiktoken", "x.tiktoken", {"tokenizer_class": "ChatGLM4Tokenizer"})
    ranks = [bytes([byte]) for byte in range(256)] + [b"xyz"]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks))
    (folder / "x.tiktoken").write_text("".join(lines))
    assert made(folder, "x.tiktoken").encode("xyz").ids == [256]
    assert made(folder, "x.tiktoken").encode("xyzz").ids == list(b"xyzz")


def test_runs_of_one_score_grow_from_their_beginning() -> None:
    """As SentencePiece merges them: of pairs with one score the first in the text."""
    pieces = {SPACE * count: (count, -1e9) for count in range(1, 5)}
    numbers = {text: number for text, (number, _) in pieces.items()}
    model = byte_pairs(numbers, merges_by_score(pieces))
    known = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    for length in range(1, 14):
        assert known.encode(SPACE * length).ids == [4] * (length // 4) + [length % 4] * bool(length % 4)


def test_a_piece_that_is_no_control_piece_begins_no_text() -> None:
    """Where a file does not say which begins a text, piece 1 does, if it is made for that."""

    def piece(text: bytes, kind: int) -> bytes:
        inner = b"\n" + bytes([len(text)]) + text + b"\x18" + bytes([kind])
        return b"\n" + bytes([len(inner)]) + inner

    data = piece(b"<unk>", 2) + piece(b"a", 1) + piece(b"</s>", 3)
    model = read_sentencepiece(Path("/x"), data)
    assert (model.unknown, model.begin, model.end, model.pad) == (0, -1, 2, -1)
    beyond = b"\x12\x0b" + b"\xc8\x02" + b"\xff" * 8 + b"\x01"  # trainer_spec, bos_id = 2^63 and more
    assert read_sentencepiece(Path("/x"), data + beyond).begin == -1
