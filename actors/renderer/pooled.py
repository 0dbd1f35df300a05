"""Prompts of models that pool: texts and pairs of texts with the tokens that the model's tokenizer puts around them.

Those stay where a text is cut, so the tokenizer itself cuts. What is far too long is cut before it is tokenised.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..model.info import ModelInfo
from ..model.pooling.spec import PairForm
from ..model.tokenizers.tokenizer import special_tokens, tokenizer_config
from ..protocol.topics.prompts import PairPrompt, TextPrompt
from .oversized import GIANT, LEAST

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


PUNCTUATION = str.maketrans("", "", string.punctuation)


class TooFewTokens(ValueError):
    """The tokens around a text are more than there shall be in all."""


class PooledTexts:
    """Tokenises them. What tokenizer_config.json says of an end token that tokenizer.json does not add, holds."""

    def __init__(self, tokenizer: Tokenizer, model: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._longest = model.longest_text
        self._ending: list[int] = []
        self._form = None if model.pooling is None else model.pooling.pair
        if model.pooling is not None and tokenizer_config(model).get("add_eos_token") is True:
            end = tokenizer.token_to_id(special_tokens(model).get("eos_token", ""))
            if end is not None and tokenizer.encode("a").ids[-1:] != [end]:
                self._ending = [end]

    def encode(self, prompt: TextPrompt | PairPrompt) -> tuple[list[int], int]:
        """(ids, where the second text begins, 0 if there is none or the model does not tell them apart)."""
        if self._form is not None and isinstance(prompt, PairPrompt):
            return self._formed(self._form, prompt), 0
        ids, second = _read(_encode(self._tokenizer, prompt))
        return ids + self._ending_of(prompt), second

    def encode_cut(self, prompt: TextPrompt | PairPrompt, keep: int, keep_first: bool) -> tuple[list[int], int]:
        """The same, at most `keep` tokens; of a pair the longer text is cut first. TooFewTokens if there is no room."""
        if self._form is not None and isinstance(prompt, PairPrompt):
            return self._formed(self._form, self.pair(prompt, keep_first), keep, keep_first), 0
        ending, shortened = self._ending_of(prompt), self._shortened(prompt, keep_first)
        room = keep - len(ending)
        if room < 1:
            raise TooFewTokens(keep)
        try:
            self._tokenizer.enable_truncation(max_length=room, direction="right" if keep_first else "left")
            ids, second = _read(_encode(self._tokenizer, shortened))
        finally:
            self._tokenizer.no_truncation()
        if len(ids) > room:
            raise TooFewTokens(keep)
        return ids + ending, second

    def _formed(
        self, form: PairForm, prompt: PairPrompt, keep: int | None = None, keep_first: bool = True
    ) -> list[int]:
        """What a generating model is asked of the two; only what stands between its fixed parts is cut."""
        about = prompt.instruction or form.instruction
        asked = form.form.format(instruction=about, query=prompt.text, document=prompt.second)
        parts = [
            self._tokenizer.encode(part, add_special_tokens=False).ids for part in (form.before, asked, form.after)
        ]
        before, ids, after = parts
        if keep is not None:
            room = keep - len(before) - len(after)
            if room < 1:
                raise TooFewTokens(keep)
            ids = ids[:room] if keep_first else ids[max(0, len(ids) - room) :]
        return [*before, *ids, *after]

    def pair(self, prompt: PairPrompt, keep_first: bool) -> PairPrompt:
        """Without what is too much in any case, and of each text so many tokens as are wanted of it."""
        found = self._shortened(prompt, keep_first)
        assert isinstance(found, PairPrompt)
        return found

    def firsts(self, prompt: PairPrompt) -> PairPrompt:
        """Of each text so many tokens as are wanted of it."""
        first, second = self._first(prompt.text, prompt.most_first), self._first(prompt.second, prompt.most)
        return replace(prompt, text=first, second=second)

    def _shortened(self, prompt: TextPrompt | PairPrompt, keep_first: bool) -> TextPrompt | PairPrompt:
        found = _shortened(prompt, max(LEAST, GIANT * self._longest), keep_first)
        if isinstance(found, PairPrompt):
            return self.firsts(found)
        return replace(found, text=self._first(found.text, found.most))

    def _first(self, text: str, most: int) -> str:
        """So many tokens of it; 0: all."""
        if not most:
            return text
        ends = self._tokenizer.encode(text, add_special_tokens=False).offsets[:most]
        return text[: ends[-1][1]] if ends else text

    def _ending_of(self, prompt: TextPrompt | PairPrompt) -> list[int]:
        return [] if isinstance(prompt, TextPrompt) and not prompt.add_special_tokens else self._ending


def _encode(tokenizer: Tokenizer, prompt: TextPrompt | PairPrompt) -> Encoding:
    if isinstance(prompt, PairPrompt):
        return tokenizer.encode(prompt.text, prompt.second)
    return tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)


def _read(encoding: Encoding) -> tuple[list[int], int]:
    types: list[int] = encoding.type_ids
    return encoding.ids, types.index(1) if 1 in types else 0


def _shortened(prompt: TextPrompt | PairPrompt, most: int, keep_first: bool) -> TextPrompt | PairPrompt:
    """Of each text so many characters."""

    def cut(text: str) -> str:
        return text[:most] if keep_first else text[-most:]

    if isinstance(prompt, PairPrompt):
        return replace(prompt, text=cut(prompt.text), second=cut(prompt.second))
    return replace(prompt, text=cut(prompt.text))


def without_punctuation(prompt: TextPrompt | PairPrompt) -> TextPrompt | PairPrompt:
    """And with one space between words."""

    def cut(text: str) -> str:
        return " ".join(text.translate(PUNCTUATION).split())

    if isinstance(prompt, PairPrompt):
        return replace(prompt, text=cut(prompt.text), second=cut(prompt.second))
    return replace(prompt, text=cut(prompt.text))


def lowered(prompt: TextPrompt | PairPrompt) -> TextPrompt | PairPrompt:
    """In small letters."""
    if isinstance(prompt, PairPrompt):
        return replace(prompt, text=prompt.text.lower(), second=prompt.second.lower())
    return replace(prompt, text=prompt.text.lower())
