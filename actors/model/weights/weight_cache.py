"""Files of weights as they are computed with, in actorserve/weights of $XDG_CACHE_HOME (~/.cache): which are there,
what stands at their beginning, and how they are removed. Knows no tensors.

A file's name is a digest of all that its numbers follow from (worker/weight_cache/cache.py), so that what was made of
another model, by other code or for another processor is not found. It is written under another name, synced and then
renamed: it is whole or not there, and is never written again. Its size stands at its beginning, and a digest of its
header at its end: what was cut off all the same is not used. Who has mapped one keeps it when it is removed.

    magic, bytes of the header, bytes of the file    three words
    the header    as msgpack: Header
    tensors       from the next multiple of ALIGNED on, each at a multiple of LINE
    the header's digest
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec

SUFFIX, NEW = ".weights", ".new-"
MAGIC = b"ASWEIGH3"
BEGINNING = Struct("<8sQQ")
ALIGNED, LINE = 1 << 12, 64
DIGEST_BYTES = 32
LARGEST_HEADER = 64 << 20
GIB = 1 << 30


class TensorPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor stands, counted from the first one."""

    dtype: str
    sizes: list[int]
    at: int


class LinearPlaces(msgspec.Struct, array_like=True, frozen=True):
    """A linear's tensors and numbers, as kernels/cpu/native/linear.py has them."""

    kind: int
    outputs: int
    inputs: int
    scaled: int
    group: int
    tensors: list[TensorPlace | None]  # weight, scale, bias
    rest: LinearPlaces | None = None  # the outputs behind these, of numbers of another kind


class Header(msgspec.Struct, frozen=True):
    """What the file has."""

    model: str
    linears: dict[str, LinearPlaces]


class WeightFile(NamedTuple):
    """One that is there."""

    path: Path
    bytes: int
    model: str
    used_ns: int  # when it was used last


def cache_folder(make: bool = False) -> Path | None:
    """Where they are; None where the folder is not there, or is not ours alone to write."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve" / "weights"
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
    except (OSError, RuntimeError):
        return None
    ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    return folder if ours and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def read_header(file: int) -> tuple[Header, int] | None:
    """(the header, where tensors begin) of an open file; None if it is none of these, or not whole."""
    beginning = os.pread(file, BEGINNING.size, 0)
    if len(beginning) < BEGINNING.size:
        return None
    magic, length, size = BEGINNING.unpack(beginning)
    if magic != MAGIC or length > LARGEST_HEADER or size != os.fstat(file).st_size:
        return None
    text = os.pread(file, length, BEGINNING.size)
    if os.pread(file, DIGEST_BYTES, size - DIGEST_BYTES) != digest_of(text):
        return None
    try:
        header = msgspec.msgpack.decode(text, type=Header)
    except msgspec.DecodeError:
        return None
    return header, first_tensor(length)


def is_whole(path: Path) -> bool:
    """Is such a file there?"""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return read_header(file) is not None
    finally:
        os.close(file)


def first_tensor(header_bytes: int) -> int:
    """Where tensors begin behind a header of so many bytes."""
    return -(-(BEGINNING.size + header_bytes) // ALIGNED) * ALIGNED


def digest_of(header: bytes) -> bytes:
    """What stands at the end of a file."""
    return hashlib.sha256(header).digest()


def weight_files() -> list[WeightFile]:
    """All that are whole, the one that was used last first."""
    folder = cache_folder()
    found = []
    for path in [] if folder is None else folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another process removes, too
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                read, state = read_header(file), os.fstat(file)
            finally:
                os.close(file)
            model = "?" if read is None else read[0].model
            found.append(WeightFile(path, state.st_size, model, state.st_mtime_ns))
    return sorted(found, key=lambda one: -one.used_ns)


def remove(files: Iterable[WeightFile]) -> int:
    """The bytes that this frees, once nobody has them mapped any more."""
    freed = 0
    for one in files:
        with contextlib.suppress(FileNotFoundError):
            one.path.unlink()
            freed += one.bytes
    return freed


def remove_parts() -> None:
    """What writers have left that were killed; whoever writes has a lock on it."""
    folder = cache_folder()
    for path in [] if folder is None else folder.glob(f"{NEW}*"):
        with contextlib.suppress(OSError):  # it is being written, or has just been renamed
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), path.stat()):
                    path.unlink()
            finally:
                os.close(file)


def keep_within(most_bytes: int, but: Path) -> None:
    """Remove those that nobody has used for the longest time, until all together have no more bytes. `but` stays."""
    remove_parts()
    files = weight_files()
    left = sum(one.bytes for one in files)
    for one in reversed(files):
        if left > most_bytes and one.path != but:
            left -= remove([one])
