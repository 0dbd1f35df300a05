"""Vectors as JSON. One of each token of a long text are millions of numbers: others have their turns meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from ..output.turns import Turns

Matrix = tuple[int, int, bytes]  # rows, columns, and float32 of all rows
WORD_BYTES = array("f").itemsize
PIECE = 1 << 16  # bytes of float32 that are written in one turn: some milliseconds


async def written(matrices: Iterable[Matrix], by_token: bool = False) -> list[msgspec.Raw]:
    """Of each a list of numbers; `by_token`: a list of its rows."""
    turns = Turns(PIECE)
    made = []
    for _, columns, floats in matrices:
        text = bytearray(b"[" if by_token else b"")  # grows where it is: no turn is for copying all of it
        row = WORD_BYTES * columns if by_token else len(floats)
        for start in range(0, len(floats), row):
            text += b"," if start else b""
            await _write(text, floats[start : start + row], turns)
        text += b"]" if by_token else b""
        made.append(msgspec.Raw(text))
    return made


async def _write(text: bytearray, floats: bytes, turns: Turns) -> None:
    for start in range(0, len(floats), PIECE):
        piece = floats[start : start + PIECE]
        text += (b"," if start else b"[") + msgspec.json.encode(array("f", piece).tolist())[1:-1]
        await turns.done(len(piece))
    text += b"]"
