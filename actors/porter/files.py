"""One block in one file: read only if it is whole, and the block that its name says.

    root/<fingerprint>/<first byte of the key>/<key>.kv
    a file: magic, fingerprint, key, length, checksum of all of that and of the contents; then the contents

A file is written under another name and renamed, so that it is there as a whole or not at all, whoever dies. What a
machine's end leaves of it the checksum tells. Knows no actor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from hashlib import blake2b
from pathlib import Path
from struct import Struct

MAGIC = b"ACTKVB\0\1"
HEAD = Struct("<8s32s16sQ32s")
SUFFIX, UNFINISHED = ".kv", ".part"
FINGERPRINT, FIRST = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{2}")  # folders
BLOCK = re.compile("[0-9a-f]{32}" + re.escape(SUFFIX))
PART = re.compile(BLOCK.pattern + r"\.\d+-\d+" + re.escape(UNFINISHED))
_numbers = itertools.count()


class BadFile(ValueError):
    """It is not what its name says."""


def place_of(root: Path, fingerprint: bytes, key: bytes) -> Path:
    """Where a block lies."""
    return root / fingerprint.hex() / f"{key[0]:02x}" / f"{key.hex()}{SUFFIX}"


def checksum(fingerprint: bytes, key: bytes, data: bytes | memoryview) -> bytes:
    """Of a block, and of what it is called."""
    found = blake2b(MAGIC + fingerprint + key + len(data).to_bytes(8, "little"), digest_size=32)
    found.update(data)
    return found.digest()


def pack_block(fingerprint: bytes, key: bytes, data: bytes) -> bytes:
    """As a file has it."""
    return HEAD.pack(MAGIC, fingerprint, key, len(data), checksum(fingerprint, key, data)) + data


def unpack_block(fingerprint: bytes, key: bytes, size: int, packed: bytes) -> bytes:
    """BadFile if it is not this block, of this size, or not whole."""
    if not isinstance(packed, bytes | bytearray | memoryview):
        raise BadFile(f"it is a {type(packed).__name__}, not bytes")
    if len(packed) < HEAD.size:
        raise BadFile("it is too short")
    magic, its_fingerprint, its_key, length, its_sum = HEAD.unpack_from(packed)
    if (magic, its_fingerprint, its_key, length) != (MAGIC, fingerprint, key, size):
        raise BadFile("it says that it is another one")
    data = bytes(packed[HEAD.size :])
    if len(data) != size or checksum(fingerprint, key, data) != its_sum:
        raise BadFile("its contents are not whole")
    return data


def write_block(root: Path, fingerprint: bytes, key: bytes, data: bytes) -> int:
    """Returns the bytes of the file, OSError if it cannot be written: nothing of it is left then."""
    place = place_of(root, fingerprint, key)
    part = place.with_name(f"{place.name}.{os.getpid()}-{next(_numbers)}{UNFINISHED}")
    head = HEAD.pack(MAGIC, fingerprint, key, len(data), checksum(fingerprint, key, data))
    try:
        try:
            file = part.open("xb", buffering=0)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = part.open("xb", buffering=0)
        with file:
            for piece in (head, data):
                written = 0
                while written < len(piece):
                    written += file.write(memoryview(piece)[written:]) or 0
        part.replace(place)
    except OSError:
        with contextlib.suppress(OSError):  # there is none, or it will be taken for one that was left behind
            part.unlink()
        raise
    return len(head) + len(data)


def read_block(root: Path, fingerprint: bytes, key: bytes, size: int) -> bytes | None:
    """The contents of a file of so many bytes; None if there is none, BadFile if it is another."""
    try:
        with place_of(root, fingerprint, key).open("rb", buffering=0) as file:
            packed = file.read(HEAD.size + size)
            packed = b"" if packed is None else packed + (file.read(1) or b"")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return unpack_block(fingerprint, key, size, packed)
