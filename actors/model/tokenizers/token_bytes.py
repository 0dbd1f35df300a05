"""The bytes of each token by itself, by the tokenizer's decoder: a character may be split over several."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .tokenizer_parts import byte_alphabet

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def bytes_of_tokens(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """A function that gives the bytes of one token by itself; nothing for ids that the tokenizer does not have."""
    members = decoder_members(json.loads(tokenizer.to_str()).get("decoder"))
    if [member["type"] for member in members] == ["ByteLevel"]:
        words = word_bytes(tokenizer)
    else:
        pieces = word_pieces(tokenizer, members)
        words = [piece if isinstance(piece, bytes) else piece.encode(errors="replace") for piece in pieces]
    return lambda token: words[token] if token < len(words) else b""


def decoder_members(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a decoder, sequences unrolled."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [member for inner in decoder["decoders"] for member in decoder_members(inner)]
    return [decoder]


def word_pieces(tokenizer: Tokenizer, members: list[dict[str, Any]]) -> list[str | bytes]:
    """Each word's text as it stands within another, or the byte that it stands for."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    pieces: list[str | bytes] = [""] * (max(vocabulary.values(), default=-1) + 1)
    replaces = [(m["pattern"]["String"], m["content"]) for m in members if m["type"] == "Replace"]
    replaces += [(m["replacement"], " ") for m in members if m["type"] == "Metaspace"]
    within = next((m["prefix"] for m in members if m["type"] == "WordPiece"), "")
    added = tokenizer.get_added_tokens_decoder()
    for word, token in vocabulary.items():
        for old, new in replaces:
            word = word.replace(old, new)
        if within and token not in added:
            word = word.removeprefix(within) if word.startswith(within) else f" {word}"
        byte = BYTE_TOKEN.fullmatch(word)
        pieces[token] = bytes.fromhex(byte[1]) if byte else word
    return pieces


def word_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Each word's bytes: its characters by the byte-level alphabet, or the word itself where one is not of it."""
    alphabet = byte_alphabet()
    words = [b""] * (max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for word, token in tokenizer.get_vocab(with_added_tokens=True).items():
        try:
            words[token] = bytes([alphabet[character] for character in word])
        except KeyError:
            words[token] = word.encode()
    return words
