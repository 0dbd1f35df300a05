"""tokenizer.json of a vocabulary of SentencePiece's Unigram in a GGUF file, as XLM-R and T5 have it."""

from __future__ import annotations

from typing import Any

from ....options.config import ConfigError
from ...tokenizers.tokenizer_parts import in_turn, pieces_decoder
from ...values import Values
from ...vocabularies.proto import BYTE, UNIGRAM, Piece, SentencePieceModel
from ...vocabularies.sentencepiece import normal_form, unigram

PREFIX = "tokenizer.ggml."


def unigram_parts(fields: Values, pieces: list[Piece], unknown: int) -> dict[str, Any]:
    """All but added tokens, and what stands around a text."""
    prefix = fields.flag(f"{PREFIX}add_space_prefix", absent=True)
    model = SentencePieceModel(
        file=fields.file,  # type: ignore[arg-type]
        pieces=pieces,
        kind=UNIGRAM,
        unknown=unknown,
        begin=-1,
        end=-1,
        pad=-1,
        byte_fallback=any(piece.kind == BYTE for piece in pieces),
        whitespace_as_suffix=False,
        characters=_characters(fields),
        dummy_prefix=prefix,
        fewer_spaces=fields.flag(f"{PREFIX}remove_extra_whitespaces", absent=True),
        escapes_spaces=True,
    )
    steps, cut = normal_form(model, prefix, False)
    return {
        "normalizer": in_turn("normalizers", steps),
        "pre_tokenizer": cut,
        "decoder": pieces_decoder(int(prefix)),
        "model": unigram(model, {piece.text: at for at, piece in enumerate(pieces)}),
    }


def _characters(fields: Values) -> bytes:
    """The table of characters that become others; empty where there is none."""
    name = f"{PREFIX}precompiled_charsmap"
    given = fields[name]
    try:
        return bytes(number & 0xFF for number in given or ())
    except TypeError:
        raise ConfigError(f"model: {fields.file}: {name}: a list of bytes is needed") from None
