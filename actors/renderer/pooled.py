"""Prompts of models that pool: texts and pairs of texts with the tokens that the model's tokenizer puts around them.

Those stay where a text is cut, so the tokenizer itself cuts. What is far too long is cut before it is tokenised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.messages import PairPrompt, TextPrompt
from .oversized import GIANT, LEAST

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


class TooFewTokens(ValueError):
    """The tokens around a text are more than there shall be in all."""


def encode_whole(tokenizer: Tokenizer, prompt: TextPrompt | PairPrompt) -> tuple[list[int], int]:
    """(ids, where the second text begins, 0 if there is none or the model does not tell them apart)."""
    return _read(_encode(tokenizer, prompt))


def encode_cut(
    tokenizer: Tokenizer, prompt: TextPrompt | PairPrompt, keep: int, keep_first: bool, longest: int
) -> tuple[list[int], int]:
    """The same, at most `keep` tokens; of a pair the longer text is cut first. TooFewTokens if there is no room."""
    direction = "right" if keep_first else "left"
    most = max(LEAST, GIANT * longest)
    try:
        tokenizer.enable_truncation(max_length=keep, direction=direction)
        found = _read(_encode(tokenizer, _shortened(prompt, most, keep_first)))
    finally:
        tokenizer.no_truncation()
    if len(found[0]) > keep:
        raise TooFewTokens(keep)
    return found


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
        return PairPrompt(cut(prompt.text), cut(prompt.second))
    return TextPrompt(cut(prompt.text), prompt.add_special_tokens)


def lowered(prompt: TextPrompt | PairPrompt) -> TextPrompt | PairPrompt:
    """In small letters."""
    if isinstance(prompt, PairPrompt):
        return PairPrompt(prompt.text.lower(), prompt.second.lower())
    return TextPrompt(prompt.text.lower(), prompt.add_special_tokens)
