"""Token ids to text, a few tokens at a time. All pieces together are what the tokenizer's decode() gives for all ids.

A character that is split over tokens is held back until it is whole; what is still held at the end is flushed as
decode() shows it (U+FFFD). Two ways: byte-level tokenizers by a table of each word's bytes, all others by decoding a
moving window.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BROKEN = "\ufffd"


class TextDecoder(Protocol):
    """One sequence's text."""

    def push(self, ids: list[int]) -> str:
        """The text that these ids complete."""

    def flush(self) -> str:
        """What was held back."""


def decoder_factory(tokenizer: Tokenizer) -> Callable[[bool], TextDecoder]:
    """A function that makes a decoder for one sequence; its argument says whether special tokens are left out."""
    special = frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    none: frozenset[int] = frozenset()
    if _is_byte_level(tokenizer):
        words = _word_bytes(tokenizer)
        return lambda skip: ByteDecoder(words, special if skip else none)
    return lambda skip: WindowDecoder(tokenizer, skip)


class ByteDecoder:
    """For byte-level tokenizers: the words' bytes, through an incremental UTF-8 decoder."""

    def __init__(self, words: list[bytes], skipped: frozenset[int]) -> None:
        self._words = words
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int]) -> str:
        words, skipped = self._words, self._skipped
        size = len(words)  # the model may have more words than the tokenizer: they have no text
        return self._utf8.decode(b"".join([words[token] for token in ids if token not in skipped and token < size]))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class WindowDecoder:
    """For any tokenizer: decode from the last place where the text was whole, and take what is new.

    By position in `ids`: [prefix, read) is context whose text was given out, [read, end) is not complete yet.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special
        self._ids: list[int] = []
        self._read = 0
        self._context = ""  # the text of ids[:read], which begins at `prefix`

    def push(self, ids: list[int]) -> str:
        self._ids += ids
        text = self._decode(self._ids)
        if len(text) <= len(self._context) or text.endswith(BROKEN):
            return ""
        new = text[len(self._context) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._context = self._decode(self._ids)
        return new

    def flush(self) -> str:
        return self._decode(self._ids)[len(self._context) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=self._skip)
        return text


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Is the decoder ByteLevel and nothing else?"""
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    if decoder.get("type") == "Sequence":
        members = decoder.get("decoders", [])
        decoder = members[0] if len(members) == 1 else {}
    return bool(decoder.get("type") == "ByteLevel")


def _word_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Each word's bytes: its characters by the byte-level alphabet, or the word itself where one is not of it."""
    alphabet = _byte_alphabet()
    words = [b""] * (max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for word, token in tokenizer.get_vocab(with_added_tokens=True).items():
        try:
            words[token] = bytes([alphabet[character] for character in word])
        except KeyError:
            words[token] = word.encode()
    return words


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes (GPT-2): printable Latin-1 for itself, the others from 256 up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
