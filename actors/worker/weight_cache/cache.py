"""Weights that an earlier start has made ready, and those that this one makes ready for the next (--weight-cache-gib).

What is kept are products by kernels of our own (kernels/cpu/native/linear.py): rows joined and in their order, rounded
to 8 bits, or with scales of 4 bits beside them. Their bits are those that would be made anew, since the file's name is
a digest of what they follow from: the model's files, options, code, the library's own digest, torch.

A thread writes the file while no step is computed, which it would slow. Who dies meanwhile leaves a part of it under
another name, on which the next one who writes has the lock, and begins anew; of several workers who start at once one
writes. A disk without room is a line in the log, and no more.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from hashlib import blake2b
from pathlib import Path

import torch

from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.native.linear import NativeLinear

from ...model.info import ModelInfo
from ...model.weights.marks import folder_marks
from ...model.weights.weight_cache import GIB, NEW, SUFFIX, cache_folder, is_whole, keep_within
from ...options.config import Config
from ..kept_memory.tier import code_digest
from .file import MappedWeights, map_weights, write_weights
from .quiet import QUIET

log = logging.getLogger("worker")

LEAST = 64 << 20  # bytes of weights, below which a start gains nothing
SPARE = 2  # times a file's size that have to be free before it is written
OPTIONS = ("quantization", "model_impl", "deterministic")


class WeightCache:
    """What a load finds, or leaves."""

    def __init__(self, library: Library, path: Path, model: str, most_bytes: int) -> None:
        self._path, self._model, self._most = path, model, most_bytes
        self._found: MappedWeights | None = map_weights(library, path)
        self._made: dict[str, NativeLinear] = {}
        self._is_clear = True  # no two linears have one name

    def find(self, name: str) -> NativeLinear | None:
        """A linear of an earlier start."""
        return None if self._found is None else self._found.find(name)

    def keep(self, name: str, made: object) -> None:
        """One that was made now, if it is of a kind that is kept."""
        if isinstance(made, NativeLinear) and self._found is None:
            self._is_clear = self._is_clear and name not in self._made
            self._made[name] = made

    def loaded(self) -> threading.Thread | None:
        """All are there; what writes those that are new, if they are worth it."""
        if self._found is not None:
            how = "mapped" if self._found.is_mapped else "copied"
            log.info("weights were made ready by an earlier start: %s (%s)", self._path, how)
            return None
        if not self._is_clear or not LEAST <= self._size() <= self._most:
            self._made.clear()
            return None
        writer = threading.Thread(target=self._write, name="weight cache", daemon=True)
        writer.start()
        return writer

    def _size(self) -> int:
        return sum(
            part.nbytes for made in self._made.values() for one in made.parts for part in one.kept if part is not None
        )

    def _write(self) -> None:
        try:
            with torch.inference_mode():
                self._write_alone()
        except OSError as error:
            log.info("weights are not kept for the next start: %s: %s", self._path.parent, error.strerror)
        finally:
            self._made.clear()

    def _write_alone(self) -> None:
        """Unless another one does."""
        new = self._path.with_name(NEW + self._path.name)
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return
        try:
            if not _is_at(file, new):  # another has finished it meanwhile: it is in its place
                return
            self._write_to(file, new)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def _write_to(self, file: int, new: Path) -> None:
        os.ftruncate(file, 0)
        free = os.statvfs(new.parent)
        if is_whole(self._path):  # another was quicker
            new.unlink()
            return
        if free.f_bavail * free.f_frsize < SPARE * self._size():
            raise OSError(errno.ENOSPC, "too little room")
        size = write_weights(file, self._model, self._made, QUIET.wait)
        os.fsync(file)
        new.rename(self._path)
        keep_within(self._most, but=self._path)
        log.info("weights are kept for the next start: %s, %.2f GiB", self._path, size / GIB)


def open_weight_cache(
    config: Config, info: ModelInfo, library: Library | None, dtype: torch.dtype
) -> WeightCache | None:
    """That of this model; None where there is none to be."""
    if library is None or not config.weight_cache_gib or config.load_format == "dummy":
        return None
    if (folder := cache_folder(make=True)) is None:
        log.info("weights are not kept for the next start: the cache folder cannot be used")
        return None
    options = [getattr(config, name) for name in OPTIONS]
    made_by = code_digest(), library.name, torch.__version__
    said = repr((folder_marks(info.folder), made_by, str(dtype), options))
    name = blake2b(said.encode(), digest_size=16).hexdigest()
    return WeightCache(library, folder / f"{name}{SUFFIX}", info.folder, int(config.weight_cache_gib * GIB))


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
