"""SentencePiece's file: what it says of pieces, training and normal form. Protocol buffers by a reader of our own.

Leaf module: such files come from strangers, so that every length is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...options.config import ConfigError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
UNIGRAM, BPE = 1, 2  # kinds of models
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields
MOST_PIECES = 1 << 22
Value = int | bytes


class Piece(NamedTuple):
    """A word of the vocabulary; its place in the file is its number."""

    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """What is used of a file."""

    file: Path
    pieces: list[Piece]
    kind: int  # UNIGRAM or BPE, or others
    unknown: int  # numbers of pieces; -1: none
    begin: int
    end: int
    pad: int
    byte_fallback: bool
    whitespace_as_suffix: bool
    characters: bytes  # the compiled table of characters that become others
    dummy_prefix: bool  # a text has a space before it
    fewer_spaces: bool  # no spaces at the ends of a text, and single ones inside
    escapes_spaces: bool


def read_sentencepiece(file: Path, data: bytes) -> SentencePieceModel:
    """ConfigError says what is wrong with the file."""
    try:
        return _model(file, data)
    except (ValueError, struct.error) as error:
        raise ConfigError(f"--tokenizer: {file} is broken or cut off: {error}") from None


def looks_like_sentencepiece(data: bytes) -> bool:
    """Does it begin with a piece?"""
    return data[:1] == b"\n" and not data.startswith(b"\n\n")


def _model(file: Path, data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trained: dict[int, Value] = {}
    normal: dict[int, Value] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
            if len(pieces) > MOST_PIECES:
                raise ValueError(f"it has more than {MOST_PIECES:,} pieces")
        elif number == 2:
            trained |= dict(_fields(_bytes(value)))
        elif number == 3:
            normal |= dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    return SentencePieceModel(
        file=file,
        pieces=pieces,
        kind=_number(trained, 3, UNIGRAM),
        unknown=next((at for at, piece in enumerate(pieces) if piece.kind == UNKNOWN), -1),
        begin=_place(trained, 41, 1, pieces),
        end=_place(trained, 42, 2, pieces),
        pad=_place(trained, 43, -1, pieces),
        byte_fallback=bool(_number(trained, 35, 0)),
        whitespace_as_suffix=bool(_number(trained, 24, 0)),
        characters=_bytes(normal.get(2, b"")),
        dummy_prefix=bool(_number(normal, 3, 1)),
        fewer_spaces=bool(_number(normal, 4, 1)),
        escapes_spaces=bool(_number(normal, 5, 1)),
    )


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _bytes(value).decode()
        elif number == 2:
            score = struct.unpack("<f", _bytes(value))[0]
            if score != score:
                raise ValueError(f"the score of {text!r} is no number (NaN)")
        elif number == 3 and isinstance(value, int):
            kind = value
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"{text!r} is of the unknown kind {kind}")
    return Piece(text, score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if length > len(data) - at:
            raise ValueError("it ends inside a field")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits in bytes of 7, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise ValueError("a number has more than 64 bits")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a text or message is needed")
    return value


def _number(message: dict[int, Value], field: int, absent: int) -> int:
    value = message.get(field, absent)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value  # one below 0 is larger than any that counts


def _place(message: dict[int, Value], field: int, absent: int, pieces: list[Piece]) -> int:
    """The number of a control piece, -1 where it is none."""
    number = _number(message, field, absent)
    return number if 0 <= number < len(pieces) and pieces[number].kind == CONTROL else -1
