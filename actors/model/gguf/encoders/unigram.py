"""tokenizer.json of a vocabulary of SentencePiece's Unigram in a GGUF file, as XLM-R and T5 have it."""

from __future__ import annotations

from typing import Any

from ....options.config import ConfigError
from ...tokenizers.tokenizer_parts import in_turn, normal_form, pieces_decoder, unigram
from ...values import Values

PREFIX = "tokenizer.ggml."


def unigram_parts(fields: Values, pieces: list[tuple[str, float]], unknown: int, with_bytes: bool) -> dict[str, Any]:
    """All but added tokens, and what stands around a text."""
    prefix = fields.flag(f"{PREFIX}add_space_prefix", absent=True)
    fewer = fields.flag(f"{PREFIX}remove_extra_whitespaces", absent=True)
    steps, cut = normal_form(_characters(fields), fewer, prefix, True)
    return {
        "normalizer": in_turn("normalizers", steps),
        "pre_tokenizer": cut,
        "decoder": pieces_decoder(int(prefix)),
        "model": unigram(pieces, unknown, with_bytes),
    }


def _characters(fields: Values) -> bytes:
    """The table of characters that become others; empty where there is none."""
    name = f"{PREFIX}precompiled_charsmap"
    given = fields[name]
    try:
        return bytes(number & 0xFF for number in given or ())
    except TypeError:
        raise ConfigError(f"model: {fields.file}: {name}: a list of bytes is needed") from None
