"""Token ids to text, a few tokens at a time; how they are cut never changes the text.

A character that is split over tokens is held back until it is whole; what is still held at the end comes as U+FFFD.
Three ways, by the tokenizer's decoder:
- byte-level (Llama 3, Qwen): by a table of each word's bytes. All pieces together are decode() of all ids.
- byte fallback (Llama 2, Mistral, Gemma): by a table of each word's text or byte. decode() shows each byte of a run of
  byte tokens as U+FFFD if any of it is broken; here, where whole characters have been given out by then, only those
  bytes are broken that belong to no character. Runs that are valid UTF-8, and all else, are as decode() gives them.
- any other (Metaspace, WordPiece, words with </w>): by decoding a moving window. As decode() gives them, where the text
  of some ids is the beginning of the text of more ids, which holds for those three.
Ids that the tokenizer does not have are without text: the model's vocabulary may be padded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..model.tokenizers.token_bytes import decoder_members, word_bytes, word_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BROKEN = "\ufffd"
MOST_HELD = 8  # tokens that may wait for the rest of a character: more than any character has bytes
ESCAPED = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of broken bytes, one for each


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
    members = decoder_members(json.loads(tokenizer.to_str()).get("decoder"))
    if [member["type"] for member in members] == ["ByteLevel"]:
        words = word_bytes(tokenizer)
        return lambda skip: ByteDecoder(words, special if skip else none)
    if (strip := _fallback_strip(members)) is not None:
        pieces = word_pieces(tokenizer, members)
        return lambda skip: FallbackDecoder(pieces, special if skip else none, strip)
    known = frozenset(tokenizer.get_vocab(with_added_tokens=True).values())
    return lambda skip: WindowDecoder(tokenizer, known - special if skip else known)


class ByteDecoder:
    """For byte-level tokenizers: the words' bytes; those of a character that is not whole yet are held back."""

    def __init__(self, words: list[bytes], skipped: frozenset[int]) -> None:
        self._words = words
        self._skipped = skipped
        self._held = b""

    def push(self, ids: list[int]) -> str:
        words, skipped = self._words, self._skipped
        size = len(words)  # the model may have more words than the tokenizer: they have no text
        data = self._held + b"".join([words[token] for token in ids if token not in skipped and token < size])
        text, read = codecs.utf_8_decode(data, "replace", False)
        self._held = data[read:]
        return text

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors="replace")


class FallbackDecoder:
    """For byte-fallback tokenizers: a word's text, or its byte, through an incremental UTF-8 decoder.

    `strip` is (a character, how many of it the text loses at its beginning).
    """

    def __init__(self, pieces: list[str | bytes], skipped: frozenset[int], strip: tuple[str, int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._space, self._strip = strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def push(self, ids: list[int]) -> str:
        size = len(self._pieces)
        new = []
        for token in ids:
            if token in self._skipped or token >= size:
                continue
            piece = self._pieces[token]
            if isinstance(piece, bytes):
                new.append(self._bytes(piece))
            elif piece:
                new += self._bytes(b"", ends=True), piece
        return self._stripped("".join(new))

    def flush(self) -> str:
        return self._stripped(self._bytes(b"", ends=True))

    def _bytes(self, data: bytes, ends: bool = False) -> str:
        """The characters that these bytes complete; with `ends`, what was held before, broken."""
        return ESCAPED.sub(BROKEN, self._utf8.decode(data, ends))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(self._space):
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDecoder:
    """For any tokenizer: decode from the last place where the text was whole, and take what is new.

    By position in `ids`: [0, read) is context whose text was given out, [read, end) is not complete yet. One token is
    looked at after the other, so that it does not matter how they come. No more than MOST_HELD tokens are held back, so
    that each token costs the same, whatever the model writes.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown  # ids that have text
        self._ids: list[int] = []
        self._read = 0
        self._context = ""  # the text of ids[:read]

    def push(self, ids: list[int]) -> str:
        return "".join([self._push(token) for token in ids if token in self._shown])

    def _push(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        new = text[len(self._context) :]
        if (not new or text.endswith(BROKEN)) and len(self._ids) - self._read < MOST_HELD:
            return ""
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._context = self._decode(self._ids)
        return new

    def flush(self) -> str:
        return self._decode(self._ids)[len(self._context) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _fallback_strip(members: list[dict[str, Any]]) -> tuple[str, int] | None:
    """Is the decoder Replace…, ByteFallback, Fuse and perhaps Strip? Then what is stripped at the beginning."""
    types = [member["type"] for member in members]
    replaces = [member for member in members if member["type"] == "Replace"]
    rest = types[len(replaces) :]
    if types[: len(replaces)] != ["Replace"] * len(replaces) or any("String" not in m["pattern"] for m in replaces):
        return None
    if rest == ["ByteFallback", "Fuse"]:
        return "", 0
    if rest == ["ByteFallback", "Fuse", "Strip"] and not members[-1]["stop"]:
        return members[-1]["content"], members[-1]["start"]
    return None
