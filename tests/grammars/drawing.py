"""A model that knows nothing: it draws at random what a grammar allows, and comes to an end."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from tokenizers import Tokenizer

from actorserve.actors.grammar.compiler import Grammars, unpack
from actorserve.actors.grammar.matchers import Matchers
from actorserve.actors.model import demo
from tests.support.models import tokenizers_made
from tests.support.models.tokenizers_made import token_id

LONGEST = 2500  # tokens, by which every grammar here must have come to an end
CLOSERS = {'"': 3.0, "@": 3.0, "]": 2.0, "}": 2.0}  # an email's @, too


class Model(NamedTuple):
    """A vocabulary with its grammars, as a renderer and a worker have them."""

    tokenizer: Tokenizer
    vocab_size: int
    ends: list[int]
    grammars: Grammars
    closing: np.ndarray  # how much each word helps to come to an end

    def grammar(self, **constraint: Any) -> str:
        """The grammar for the fields of a Constraint, by the way that a renderer and a worker go."""
        return unpack(self.grammars.make(msgspec.json.encode(constraint)))

    def matchers(self, threads: int = 1) -> Matchers:
        """As a worker makes them."""
        return Matchers(self.grammars.lltokenizer, self.vocab_size, threads)

    def ids(self, text: str) -> list[int]:
        """A text's tokens, special ones too."""
        ids: list[int] = self.grammars.lltokenizer.tokenize_str(text, parse_special=True)
        return ids

    def text(self, ids: list[int]) -> str:
        """What the client reads; the end token is none of it."""
        return self.tokenizer.decode([token for token in ids if token not in self.ends], skip_special_tokens=False)


@cache
def model(kind: str) -> Model:
    """`demo`, or a kind of support/models/tokenizers_made.py: each with more words than its tokenizer, and two end
    tokens.
    """
    if kind == "demo":
        tokenizer = Tokenizer.from_file(str(Path(next(iter(demo.__path__))) / "tokenizer.json"))
        ends = [token_id(tokenizer, "<|im_end|>"), token_id(tokenizer, "<|endoftext|>")]
    else:
        tokenizer = tokenizers_made.KINDS[kind]()
        ends = [token_id(tokenizer, "</s>"), token_id(tokenizer, "<|im_end|>")]
    size = tokenizer.get_vocab_size() + 45
    words = {token: tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())}
    closing = np.array([_helps(words.get(token, "")) for token in range(size)])
    closing[ends] = 8
    return Model(tokenizer, size, ends, Grammars(tokenizer, size, ends), closing)


def _helps(word: str) -> float:
    return CLOSERS[word[0]] if word and word[0] in CLOSERS else -1.0 if any(char in "[{," for char in word) else 0.0


def allowed(matchers: Matchers, row: int) -> np.ndarray:
    """The words that a row may draw."""
    indices, bits = matchers.fill(np.array([row]))
    assert indices.tolist() == [0]
    return np.flatnonzero(np.unpackbits(bits[0].view(np.uint8), bitorder="little"))


def draw(of: Model, matchers: Matchers, row: int, seed: int, patience: int = 12) -> list[int]:
    """A row's answer with its end token; the longer it gets, the more the model wants to end it."""
    chance = np.random.default_rng(seed)
    drawn: list[int] = []
    while len(drawn) < LONGEST:
        words = allowed(matchers, row)
        assert words.size and words[-1] < of.tokenizer.get_vocab_size()
        hurry = max(0, len(drawn) - patience) / 12
        token = int(words[np.argmax(chance.gumbel(size=words.size) + hurry * of.closing[words])])
        drawn.append(token)
        matchers.advance(row, token)
        if token in of.ends:
            return drawn
    raise AssertionError(f"no end within {LONGEST} tokens: {of.text(drawn)[-200:]!r}")


def answer(of: Model, grammar: str, seed: int, start: str = "", patience: int = 12) -> str:
    """One random text of a grammar, behind its `start`."""
    matchers = of.matchers()
    matchers.place(0, grammar, of.ids(start))
    return start + of.text(draw(of, matchers, 0, seed, patience))


def accepts(of: Model, grammar: str, text: str) -> bool:
    """Whether an answer may be this text: every token allowed, and the end (all end tokens) behind the last."""
    matchers = of.matchers()
    matchers.place(0, grammar)
    for token in of.ids(text):
        if token not in allowed(matchers, 0):
            return False
        matchers.advance(0, token)
    ends = set(of.ends) & set(allowed(matchers, 0).tolist())
    assert ends in (set(), set(of.ends)), "one end token is allowed and another is not"
    return bool(ends)
