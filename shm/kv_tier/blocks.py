"""Where the bytes of a block lie in a worker's kept KV memory (worker/kept_memory/file.py): for who copies blocks.

A worker writes a description into its file's first page: the pieces of memory that it took, each with rows that lie a
block's part of all blocks apart, and a digest of what the numbers mean. It is written by the worker alone, when it
knows its memory, and read by the porter, which tells from its checksum whether it is whole. A block's bytes are its
rows of all pieces, one behind the other.
"""

from __future__ import annotations

import os
from struct import Struct
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..layout import PAGE

HEADER = Struct("<8sQQ32s")  # of the page: magic, first life whose memory it is, blocks, digest
MAGIC = b"ACTKV\0\0\1"
PLACE = 128  # bytes into the page, of the description
HEAD = Struct("<II")  # its length, its checksum


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """`rows` of each block's, `row_bytes` long; row r of block b lies `(r * blocks + b) * row_bytes` behind `start`."""

    start: int
    rows: int
    row_bytes: int


class KVDescription(msgspec.Struct, array_like=True, frozen=True):
    """What one worker says of its memory. `weights`: marks of the files that it has loaded."""

    meaning: bytes
    blocks: int
    pieces: list[Piece]
    weights: bytes = b""

    @property
    def block_bytes(self) -> int:
        """Of this worker's part of a block."""
        return sum(piece.rows * piece.row_bytes for piece in self.pieces)


def first_life(page: bytes) -> int:
    """Since which life of its worker the file is the same memory; 0: it is nobody's."""
    magic, since, _, _ = HEADER.unpack_from(page) if len(page) >= HEADER.size else (b"", 0, 0, b"")
    return since if magic == MAGIC else 0


def describe(fd: int, description: KVDescription) -> None:
    """Write it."""
    packed = msgspec.msgpack.encode(description)
    if PLACE + HEAD.size + len(packed) > PAGE:
        raise ValueError(f"a description of {len(packed)} bytes does not fit")
    os.pwrite(fd, HEAD.pack(len(packed), crc32(packed)) + packed, PLACE)


def read_description(page: bytes) -> KVDescription | None:
    """Of the file's first page; None while there is none that is whole."""
    if len(page) < PAGE:
        return None
    length, checksum = HEAD.unpack_from(page, PLACE)
    packed = page[PLACE + HEAD.size : PLACE + HEAD.size + length]
    if not length or len(packed) < length or crc32(packed) != checksum:
        return None
    try:
        return msgspec.msgpack.decode(packed, type=KVDescription)
    except msgspec.MsgspecError:
        return None


def read_block(fd: int, description: KVDescription, block: int, into: memoryview) -> bool:
    """Copy a block out of the file; False if that is shorter now: its worker has begun anew."""
    at = 0
    for piece in description.pieces:
        step = description.blocks * piece.row_bytes
        place = piece.start + block * piece.row_bytes
        for row in range(piece.rows):
            end = at + piece.row_bytes
            if os.preadv(fd, [into[at:end]], place + row * step) != piece.row_bytes:
                return False
            at = end
    return True


class BlockWriter:
    """The memory of the worker that has described it, as the arrays that it took."""

    def __init__(self, description: KVDescription, memory: list[memoryview]) -> None:
        """`memory` of each piece."""
        self._pieces: list[NDArray[np.uint8]] = [
            np.frombuffer(part, np.uint8).reshape(piece.rows, description.blocks, piece.row_bytes)
            for piece, part in zip(description.pieces, memory, strict=True)
        ]

    def write(self, block: int, data: memoryview) -> None:
        """A block's bytes, as `read_block` had them."""
        at = 0
        for piece in self._pieces:
            rows, _, width = piece.shape
            end = at + rows * width
            piece[:, block] = np.frombuffer(data[at:end], np.uint8).reshape(rows, width)
            at = end
