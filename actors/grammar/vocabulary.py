"""A model's vocabulary as grammars know it: llguidance's tokenizer, and which texts are special tokens.

Leaf module: knows tokenizers and llguidance, not what clients ask for.
"""

from __future__ import annotations

import json
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from llguidance import LLParserLimits, LLTokenizer

from .json_schema import GrammarError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
LONGEST = 1023  # bytes of a word: what llguidance's tree of words has room for
# For llguidance, what a Metaspace decoder does to words in the middle of a text.
SPACES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


class SpecialTokens(NamedTuple):
    """What the text of a grammar depends on: special tokens are not spelled by others, so they are named by id."""

    specials: dict[str, int] = {}  # but for those that end an answer
    ends: frozenset[int] = frozenset()
    shown: frozenset[int] = frozenset()  # special to llguidance alone: clients read them as text

    def split(self, text: str) -> list[str | int]:
        """A text as plain pieces (never empty) and ids of special tokens."""
        if not self.specials:
            return [text] if text else []
        longest_first = sorted(self.specials, key=len, reverse=True)
        pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
        return [self.specials.get(piece, piece) for piece in pieces if piece]


def make_lltokenizer(tokenizer: Tokenizer, vocab_size: int, end_tokens: list[int]) -> LLTokenizer:
    """`vocab_size` is the model's: ids that the tokenizer lacks are never allowed. GrammarError: it cannot be done."""
    if not end_tokens:
        raise GrammarError("structured output needs a model that names an end token")
    words = tokenizer.get_vocab(with_added_tokens=True)
    size = max(vocab_size, 1 + max(words.values()), 1 + max(end_tokens))
    try:
        return LLTokenizer(_readable(tokenizer, end_tokens), n_vocab=size, eos_token=list(end_tokens))
    except ValueError as error:
        raise GrammarError(f"structured output is not supported with this model's tokenizer: {error}") from None


def make_special_tokens(tokenizer: Tokenizer, lltokenizer: LLTokenizer) -> SpecialTokens:
    """The special tokens, as llguidance sees them: of added tokens all that look like <this>."""
    ends = frozenset(lltokenizer.eos_tokens)
    added = tokenizer.get_added_tokens_decoder()
    ids = [token for token in added if token not in ends and lltokenizer.is_special_token(token)]
    shown = frozenset(token for token in ids if not added[token].special)
    return SpecialTokens({added[token].content: token for token in ids}, ends, shown)


def _readable(tokenizer: Tokenizer, end_tokens: list[int]) -> str:
    """tokenizer.json for llguidance: a decoder that it understands, end tokens that are not text, no word too long."""
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    if (content.get("decoder") or {}).get("type") == "Metaspace":
        content["decoder"] = SPACES
    added = {token["id"]: token for token in content["added_tokens"]}
    for end in end_tokens:
        if (text := tokenizer.id_to_token(end)) is not None:
            added[end] = {"id": end, "content": text} | PLAIN | added.get(end, {}) | {"special": True}
    content["added_tokens"] = [added[token] for token in sorted(added)]
    _without_long_words(content)
    return json.dumps(content)


def _without_long_words(content: dict[str, Any]) -> None:
    """Words that are too long become special tokens by other names: a grammar's text does not come to them."""
    model = content["model"]
    vocab, is_map = model["vocab"], isinstance(model["vocab"], dict)  # Unigram has a list of words with their scores
    ids = {**vocab} if is_map else {word: at for at, (word, _) in enumerate(vocab)}
    ids |= {token["content"]: token["id"] for token in content["added_tokens"]}
    names = {word: f"<|too long {token}|>" for word, token in ids.items() if len(word.encode()) > LONGEST}
    if not names:
        return
    if is_map:
        model["vocab"] = {names.get(word, word): token for word, token in vocab.items()}
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in vocab]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if names.keys().isdisjoint((*pair, "".join(pair)))]
    added = [token for token in content["added_tokens"] if token["content"] not in names]
    added += [PLAIN | {"id": ids[word], "content": name, "special": True} for word, name in names.items()]
    content["added_tokens"] = sorted(added, key=itemgetter("id"))


def limits() -> LLParserLimits:
    """The same for the renderer, which refuses, and the worker, whose step waits for every row's mask.

    An object of 480 optional properties makes a row of 1,950 items. A grammar that can be read in ever more ways takes
    ever longer for a token, until it comes to the limit: rows of twice as many items cost four times as much.
    """
    return LLParserLimits(max_items_in_row=2000, step_max_items=20_000, max_lexer_states=50_000, verbose_errors=False)
