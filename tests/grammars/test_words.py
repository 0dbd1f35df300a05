"""Vocabularies as llguidance sees them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from actorserve.actors.grammar.compiler import GrammarError, Grammars, unpack
from actorserve.actors.grammar.matchers import Matchers
from actorserve.actors.grammar.vocabulary import SpecialTokens, make_lltokenizer, make_special_tokens
from tests.grammars.drawing import accepts, allowed, model
from tests.support.models import tokenizers_made
from tests.support.models.tokenizers_made import token_id


@pytest.mark.parametrize("kind", ["demo", "byte level", "byte fallback", "unigram bytes"])
def test_any_text_can_be_had(kind: str) -> None:
    """Letters that are no words of their own are drawn byte by byte."""
    of = model(kind)
    for text in ("a b", "Grüße 🙂", "\n\t{}", "你好\u0000", "▁"):
        if not (kind != "demo" and kind != "byte level" and "▁" in text):  # there it is a space
            assert accepts(of, of.grammar(choice=[text]), text)
            assert of.text(of.ids(text)).strip(" ") == text


@pytest.mark.parametrize("kind", ["demo", "byte level", "byte fallback", "unigram bytes", "metaspace"])
def test_what_free_text_may_not_be_made_of(kind: str) -> None:
    """Ids beyond the tokenizer's, special tokens; the ends only where it may end."""
    of = model(kind)
    matchers = of.matchers()
    matchers.place(0, of.grammar(regex="(?s:.)+x"))
    words = allowed(matchers, 0)
    assert words[-1] < of.tokenizer.get_vocab_size() < of.vocab_size
    special = {token for token, added in of.tokenizer.get_added_tokens_decoder().items() if added.special}
    assert special.isdisjoint(words.tolist()) and set(of.ends) <= special
    assert words.size > of.tokenizer.get_vocab_size() / 2
    (*_, last) = of.ids("x")
    matchers.advance(0, last)
    matchers.advance(0, last)
    assert special & set(allowed(matchers, 0).tolist()) == set(of.ends)


def test_spaces_of_metaspace() -> None:
    of = model("metaspace")
    word = token_id(of.tokenizer, "▁fox")
    matchers = of.matchers()
    grammar = of.grammar(choice=[" fox"])
    matchers.place(0, grammar)
    assert word in allowed(matchers, 0)
    matchers.advance(0, word)
    assert allowed(matchers, 0).tolist() == sorted(of.ends)


def test_a_tokenizer_that_joins_words_by_rules_of_its_own() -> None:
    with pytest.raises(GrammarError, match="tokenizer"):
        Grammars(tokenizers_made.word_piece(), 1000, [2])


def test_a_model_without_end() -> None:
    with pytest.raises(GrammarError, match="end token"):
        make_lltokenizer(tokenizers_made.byte_level(), 1000, [])


def test_a_vocabulary_smaller_than_its_tokenizer() -> None:
    """As with models whose last words were never trained: the mask is as wide as the logits."""
    tokenizer = tokenizers_made.byte_level()
    lltokenizer = make_lltokenizer(tokenizer, 300, [1, 3])
    assert lltokenizer.vocab_size == tokenizer.get_vocab_size()
    matchers = Matchers(lltokenizer, 300)
    matchers.place(0, 'start: "a"')
    indices, bits = matchers.fill(np.array([0]))
    assert indices.tolist() == [0] and bits.shape == (1, 10) and bits.flags.c_contiguous


def test_an_end_token_that_is_an_ordinary_word() -> None:
    tokenizer = tokenizers_made.byte_level()
    end, other = token_id(tokenizer, "x"), token_id(tokenizer, "y")
    of = model("byte level")._replace(ends=[1, end], grammars=Grammars(tokenizer, 500, [1, end]))
    matchers = of.matchers()
    matchers.place(0, of.grammar(regex="[w-z]{2}"))
    for _ in range(2):
        assert end not in allowed(matchers, 0) and other in allowed(matchers, 0)
        matchers.advance(0, other)
    assert allowed(matchers, 0).tolist() == [1, end]


def with_long_words(kind: str) -> Tokenizer:
    """Of 1,500 bytes: an added token, and a word that is none."""
    content = json.loads(tokenizers_made.KINDS[kind]().to_str())
    vocab, word = content["model"]["vocab"], "x"
    if isinstance(vocab, list):
        vocab.insert(50, ["x" * 1500, -3.0])
        content["added_tokens"] = [one | {"id": one["id"] + (one["id"] >= 50)} for one in content["added_tokens"]]
    while isinstance(vocab, dict) and len(word) < 1500:
        content["model"]["merges"].append([word, word])
        word += word
        vocab[word] = 1000 + len(vocab)
    made = Tokenizer.from_str(json.dumps(content))
    made.add_tokens([AddedToken(f"<{'y' * 1500}>", special=False), AddedToken("<z>", special=False)])
    return made


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "unigram bytes"])
def test_words_that_are_too_long_for_grammars(kind: str) -> None:
    """They are not drawn; all others are as without them."""
    tokenizer = with_long_words(kind)
    long = [token for word, token in tokenizer.get_vocab().items() if len(word) > 1023]
    end, size = token_id(tokenizer, "</s>"), max(tokenizer.get_vocab().values()) + 1
    grammars = Grammars(tokenizer, size, [end])
    matchers = Matchers(grammars.lltokenizer, size)
    matchers.place(0, unpack(grammars.make(b'{"regex": "(?s:.*)"}')))
    words = set(allowed(matchers, 0).tolist())
    assert len(long) > 1 and words.isdisjoint(long) and token_id(tokenizer, "x") in words
    assert grammars.lltokenizer.tokenize_str("<z>", parse_special=True) == [token_id(tokenizer, "<z>")]


def test_splitting() -> None:
    words = SpecialTokens({"<a>": 7, "<a>b": 8})
    assert words.split("x<a>y<a>b<a>") == ["x", 7, "y", 8, 7]
    assert words.split("") == [] and SpecialTokens().split("") == [] and SpecialTokens().split("<a>") == ["<a>"]


def test_added_tokens_that_look_special() -> None:
    """llguidance takes <tool_call> for special, though clients read it as text."""
    tokenizer = tokenizers_made.byte_level()
    words = make_special_tokens(tokenizer, make_lltokenizer(tokenizer, 600, [1, 3]))
    assert words.specials.keys() == {"<s>", "<|im_start|>", "<pad>", "<tool_call>"} and words.ends == {1, 3}
    assert words.shown == {words.specials["<tool_call>"]}
