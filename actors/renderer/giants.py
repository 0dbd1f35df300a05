"""Texts that are far longer than the model takes: known by their beginning. A renderer would tokenise one for seconds,
and everybody else's prompts would wait behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEAST = 1 << 18  # characters; what is shorter takes a fraction of a second, and its number of tokens can be told
GIANT = 16  # characters for each token that the model takes; ordinary text has 4
BEGINNING = 8  # of these, so that the beginning of ordinary text has twice what the model takes
EDGE = 128  # tokens near the cut that may be fewer with what stands behind it: WordPiece knows no word of 101 letters


def least_tokens(tokenizer: Tokenizer, text: str, longest: int) -> int:
    """How many tokens a text has at least, if that is too many for a model that takes `longest`; else 0: not known."""
    if len(text) <= max(LEAST, GIANT * longest):
        return 0
    beginning = tokenizer.encode(text[: BEGINNING * longest], add_special_tokens=False)
    least = len(beginning.ids) - EDGE
    return least if least >= longest else 0
