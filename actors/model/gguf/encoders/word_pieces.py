"""tokenizer.json of a BERT's vocabulary in a GGUF file.

llama.cpp has the pieces that begin a word with ▁, and those within one without the ## that the hub has there. Whether
texts are written in small letters and without accents newer files say; of older ones that is so where the vocabulary
has no capital letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...tokenizers.tokenizer_parts import SPACE
from ...values import Values

NORMALIZER = "tokenizer.ggml.normalizer."
WITHIN = "##"
LONGEST_WORD = 100  # characters; a longer one is not known


class BertMarks(NamedTuple):
    """Special tokens."""

    cls: str
    sep: str
    unk: str


def word_pieces(fields: Values, known: Mapping[str, int], marks: BertMarks) -> dict[str, Any]:
    """Of tokens as the file has them."""
    words = {_piece(text): token for text, token in known.items()}
    capitals = any(text != text.lower() for text in known if not _is_mark(text))
    small = fields.flag(f"{NORMALIZER}lowercase", absent=not capitals)
    return {
        "normalizer": {
            **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
            **{"strip_accents": fields.flag(f"{NORMALIZER}strip_accents", absent=small), "lowercase": small},
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _around(words, marks),
        "decoder": {"type": "WordPiece", "prefix": WITHIN, "cleanup": True},
        "model": {
            **{"type": "WordPiece", "unk_token": marks.unk, "continuing_subword_prefix": WITHIN},
            **{"max_input_chars_per_word": LONGEST_WORD, "vocab": words},
        },
    }


def _is_mark(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _piece(text: str) -> str:
    """As the hub has it."""
    if text.startswith(SPACE):
        return text.removeprefix(SPACE)
    return text if _is_mark(text) else f"{WITHIN}{text}"


def _around(words: Mapping[str, int], marks: BertMarks) -> dict[str, Any]:
    """The second of two texts is told apart."""

    def mark(text: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": kind}}

    first = [mark(marks.cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, mark(marks.sep, 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, mark(marks.sep, 1)]
    special = {text: {"id": text, "ids": [words[text]], "tokens": [text]} for text in (marks.cls, marks.sep)}
    return {"type": "TemplateProcessing", "single": first, "pair": first + second, "special_tokens": special}
