"""Texts that are far longer than the model takes: known by their parts. A renderer would tokenise one for seconds, and
everybody else's prompts would wait behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEAST = 1 << 18  # characters; what is shorter takes a fraction of a second, and its number of tokens can be told
GIANT = 2  # characters for each token that the model takes; ordinary text has 4, Chinese 1
PART = 1 << 16  # characters of the text that are tokenised at once
EDGE = 128  # tokens near a cut that may be fewer with what stands beside it: WordPiece knows no word of 101 letters


def least_tokens(tokenizer: Tokenizer, text: str, longest: int) -> int:
    """How many tokens a text has at least, if that is too many for a model that takes `longest`; else 0: not known.

    Its parts are tokenised until they are too many; a text whose parts are not is one that may well be taken.
    """
    if len(text) <= max(LEAST, GIANT * longest):
        return 0
    least = 0
    for start in range(0, len(text), PART):
        part = tokenizer.encode(text[start : start + PART], add_special_tokens=False)
        least += max(0, len(part.ids) - 2 * EDGE)
        if least >= longest:
            return least
    return 0
