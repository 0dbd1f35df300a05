"""Where texts are cut into words, by what GGUF files name: against lists of words, and a formula of its own."""

from __future__ import annotations

import json
import re
import string
from itertools import groupby
from typing import Any
from unicodedata import category

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from actorserve.actors.model.gguf.pre_tokenizers import BY_NAME, pre_tokenizer
from actorserve.actors.model.tokenizers.tokenizer_parts import byte_alphabet

GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
CHARACTERS = {byte: sign for sign, byte in byte_alphabet().items()}


def splitter(pre: str) -> Any:
    made = json.loads(Tokenizer(models.BPE()).to_str()) | {"pre_tokenizer": pre_tokenizer(BY_NAME[pre])}
    return Tokenizer.from_str(json.dumps(made)).pre_tokenizer


def falcon(line: str) -> list[str]:
    """Runs of punctuation, GPT-2's words of what is between them, and of these, when bytes are characters, runs of
    digits by themselves, of which each three are a word."""
    found: list[str] = []
    for apart, signs in groupby(line, lambda sign: category(sign)[0] == "P" or sign in string.punctuation):
        run = "".join(signs)
        words = [CHARACTERS[byte] for byte in run.encode()]
        for word in ["".join(words)] if apart else [word for word, _ in GPT2.pre_tokenize_str(run)]:
            for numbers, some in groupby(word, lambda sign: category(sign)[0] == "N"):
                part = "".join(some)
                found += [piece for piece in re.split("([0-9]{3})", part) if piece] if numbers else [part]
    return found


def test_falcons_numbers_are_cut_as_a_formula_of_its_own_says() -> None:
    """Its own tokenizer.json cuts when bytes are characters: of "м" one byte then is a fraction, and no letter."""
    cut = splitter("falcon")
    lines = ["a  12 1234567", "12½3456", "м and мир 999", "x²y ٣٤٥ 3.14159265!", "  (555) 123-4567", "it's $5 – 6'7"]
    for line in lines:
        assert [word for word, _ in cut.pre_tokenize_str(line)] == falcon(line), line
    assert falcon(" 1234") == ["Ġ", "123", "4"] and falcon("м") == ["Ð", "¼"]


@pytest.mark.parametrize(
    ("pre", "line", "words"),
    [
        ("deepseek-v3", "it's 12345\n\n 你好x!!", ["it", "'s", " ", "123", "45", "\n\n", " ", "你好", "x", "!!"]),
        ("deepseek-llm", "it's 12\n ªb你好", ["it", "'", "s", " ", "1", "2", "\n", " ª", "b", "你好"]),
        ("bailingmoe", "It'LL 12\n\nb", ["It", "'LL", " ", "1", "2", "\n\n", "b"]),
        ("qwen35", "it's हिन्दी 12", ["it", "'s", " हिन्दी", " ", "1", "2"]),
        ("viking", "ab 12, c", ["ab", " ", "1", "2", ",", " c"]),
        ("kimi-k2", "HelloWorld你好x 1234", ["Hello", "World", "你好", "x", " ", "123", "4"]),
        ("minimax-m2", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("kanana2", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("kormo", "it's 12?!\n", ["it", "'s", " ", "1", "2", "?!\n"]),
        ("f2llmv2", "it's 12?!\n", ["it", "'s", " ", "1", "2", "?!\n"]),
        ("ufakzeka", "Ankara'da 12", ["Ankara", "'da", " ", "1", "2"]),
        ("minicpm5", "it's 12345", ["it", "'s", " ", "123", "45"]),
        ("tiny_aya", "HelloWorld's 12345", ["Hello", "World's", " ", "12", "345"]),
        ("exaone-moe", "more words 12\n\n", ["more words", " ", "1", "2", "\n\n"]),
        ("mellum2", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("deepseek-coder", "it's 12\n ªb你好", ["it", "'", "s", " ", "1", "2", "\n", " ªb", "你好"]),
    ],
)
def test_words_are_those_of_the_models_patterns(pre: str, line: str, words: list[str]) -> None:
    spans = [span for _, span in splitter(pre).pre_tokenize_str(line)]
    assert [line[first:end] for first, end in spans] == words
