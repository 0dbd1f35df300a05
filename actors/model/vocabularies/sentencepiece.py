"""tokenizer.json of SentencePiece's `tokenizer.model`.

Of BPE the merges are written in the order of the scores; the pieces of Unigram go as they are. Numbers are the file's:
classes that number pieces in another way are refused by name.
"""

from __future__ import annotations

from typing import Any

from ...options.config import ConfigError
from ..tokenizers.tokenizer_parts import (
    WITH_BYTES,
    byte_pairs,
    in_turn,
    merges_by_score,
    normal_form,
    pieces_decoder,
    unigram,
)
from .proto import BPE, CONTROL, NORMAL, UNIGRAM, UNKNOWN, UNUSED, USER_DEFINED, SentencePieceModel
from .special import About, AddedTokens

KINDS = {UNIGRAM: "UNIGRAM", BPE: "BPE", 3: "WORD", 4: "CHAR"}
ALL = 1 << 16  # spaces that a text cannot begin with
BEGIN_WITH = frozenset("Llama CodeLlama Gemma Baichuan InternLM InternLM2 Xverse Yi Skywork".split())
OTHER_NUMBERS = frozenset(  # classes whose numbers of pieces, or texts before them, are not the file's
    "Barthez BertGeneration BigBird Cpm FNet GPTSw3 LlamaForVLM MLuke PLBart Plbart Reformer RemBert SeamlessM4T "
    "Siglip Speech2Text SpeechT5 Udop XGLM XLMProphetNet XLNet".split()
)


def from_sentencepiece(model: SentencePieceModel, about: About) -> dict[str, Any]:
    """ConfigError names what cannot be had."""
    name = about.named_class.removesuffix("Tokenizer")
    if name in OTHER_NUMBERS:
        raise refused(model, f"the class {about.named_class} does not number pieces as its file does")
    check_pieces(model)
    added = _added(model, about)
    prefix = model.dummy_prefix and about.config.flag("add_prefix_space", absent=True)
    legacy = about.config.flag("legacy", absent=not name)  # without a class it is as the file's own library has it
    steps, cut = normal_form(model.characters, model.fewer_spaces, prefix, legacy)
    begin = model.pieces[model.begin].text if model.begin >= 0 else None
    end = model.pieces[model.end].text if model.end >= 0 else None
    return {
        "added_tokens": added.listed(),
        "normalizer": in_turn("normalizers", steps),
        "pre_tokenizer": cut,
        "post_processor": added.ends(not name or name in BEGIN_WITH, begin, end),
        "decoder": pieces_decoder(ALL if model.fewer_spaces else int(prefix)),
        "model": _byte_pairs(model, added.words()) if model.kind == BPE else _unigram(model, added.words()),
    }


def check_pieces(model: SentencePieceModel) -> None:
    """ConfigError of a file that cuts texts in a way that there is none of here."""
    if model.kind not in (UNIGRAM, BPE):
        raise refused(model, f"its model_type is {KINDS.get(model.kind, model.kind)}, and not UNIGRAM or BPE")
    if model.whitespace_as_suffix:
        raise refused(model, "its pieces end with their space (treat_whitespace_as_suffix)")
    if not model.escapes_spaces:
        raise refused(model, "its pieces have spaces (escape_whitespaces is false)")
    if model.kind == UNIGRAM and any(piece.kind == UNUSED for piece in model.pieces):
        raise refused(model, "it is of the type UNIGRAM and has pieces that are not to be used (UNUSED)")


def refused(model: SentencePieceModel, reason: str) -> ConfigError:
    return ConfigError(f"--tokenizer: {model.file} is not supported: {reason}; a tokenizer.json is needed in its place")


def special_of(model: SentencePieceModel) -> dict[str, str]:
    """bos_token and others of a folder that does not name them."""
    places = {"bos_token": model.begin, "eos_token": model.end, "unk_token": model.unknown, "pad_token": model.pad}
    return {name: model.pieces[place].text for name, place in places.items() if place >= 0}


def _added(model: SentencePieceModel, about: About) -> AddedTokens:
    vocabulary: dict[str, int] = {}
    for token, piece in enumerate(model.pieces):
        if piece.text in vocabulary and piece.kind != UNUSED:
            raise refused(model, f"it has the piece {piece.text!r} twice")
        if piece.kind != UNUSED:
            vocabulary[piece.text] = token
    added = AddedTokens(about, vocabulary)
    for token, piece in enumerate(model.pieces):
        if piece.kind in (CONTROL, UNKNOWN, USER_DEFINED):
            added.add(token, piece.text, special=piece.kind != USER_DEFINED)
    added.add_told()
    return added


def piece_merges(model: SentencePieceModel) -> list[list[str]]:
    """Pairs of pieces in the order in which they are merged."""
    known = {piece.text: (at, piece.score) for at, piece in enumerate(model.pieces) if piece.kind == NORMAL}
    try:
        return merges_by_score(known)
    except ValueError as error:
        raise refused(model, str(error)) from None


def _byte_pairs(model: SentencePieceModel, vocabulary: dict[str, int]) -> dict[str, Any]:
    unknown = model.pieces[model.unknown].text if model.unknown >= 0 else None
    more = {"unk_token": unknown, "byte_fallback": model.byte_fallback}
    return byte_pairs(vocabulary, piece_merges(model)) | WITH_BYTES | more


def _unigram(model: SentencePieceModel, words: dict[str, int]) -> dict[str, Any]:
    """Tokens of the folder follow, as the library numbers them."""
    if max(words.values()) != len(words) - 1:
        raise refused(model, "its folder adds tokens that do not follow on its pieces without a gap")
    pieces = ((piece.text, piece.score) for piece in model.pieces)
    return unigram(pieces, model.unknown, model.byte_fallback)
