"""What gives the numbers in a KV block their meaning, as a digest: blocks of one fingerprint are the same wherever they
were computed. Whatever may change it changes the name under which blocks are found.

    the model's files     by their contents; of the hub's cache by the names that these have there
    options               those that a worker computes by
    the worker's word     KV layout and type, dtype, members of the group, code, libraries (worker/kept_memory/tier.py)
    a block's own key     tokens, pictures, cache salt, adapter (protocol/block_hash.py)
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ..model.weights.marks import file_marks, folder_marks, model_files
from ..options.config import Config

FORMAT = 1  # of arena slots and files
OPTIONS = (
    "dtype quantization model_impl deterministic load_format seed max_model_len kv_cache_dtype block_size "
    "tensor_parallel_size pipeline_parallel_size enable_expert_parallel cpu_kernels trust_remote_code "
    "mm_processor_kwargs media_io_kwargs max_media_pixels"
).split()
LARGE = 32 << 20  # bytes of a file whose digest is kept
DIGESTS = ".digests"  # folder for these
MOST_KNOWN = 64  # states of folders
SHA256 = re.compile("[0-9a-f]{64}")
AGAIN_S = 60.0  # behind files that could not be read


def make_fingerprint(identity: bytes, config: Config, workers: Iterable[bytes]) -> bytes:
    """`identity` of the model's files; `workers`: what each of a group says."""
    options = [(name, getattr(config, name)) for name in OPTIONS]
    said = repr((FORMAT, identity, options, list(workers)))
    return hashlib.blake2b(said.encode(), digest_size=32).digest()


def model_identity(folder: str, kept: Path | None) -> bytes:
    """Of all files that make the model. `kept`: where digests of large ones are kept, by what tells that they are the
    same; without it only these marks are taken, which differ from machine to machine.
    """
    found = hashlib.blake2b(digest_size=32)
    for path in model_files(Path(folder)):
        found.update(repr((path.name, path.stat().st_size, _digest(path, kept))).encode())
    return found.digest()


def _digest(path: Path, kept: Path | None) -> str:
    target = path.resolve()
    if target.parent.name == "blobs" and len(target.name) == 64:  # of the hub's cache: the contents' SHA-256
        return target.name
    marks = file_marks(path)
    if kept is None:
        return marks
    if target.stat().st_size < LARGE:
        return _read(target)
    place = kept / DIGESTS / hashlib.sha256(marks.encode()).hexdigest()
    try:
        text = place.read_bytes().decode(errors="replace")
        if SHA256.fullmatch(text):
            return text
    except OSError:
        pass  # nobody has kept it yet
    digest = _read(target)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}")
        beside.write_text(digest)
        beside.replace(place)
    except OSError:
        pass  # it is computed again next time
    return digest


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Identities:
    """Those of the folders whose weights are computed with: threads read the files. What a folder is by its contents
    counts only while its marks are those that a worker saw, so that nothing is taken for what it was, or is by now.
    """

    def __init__(self, kept: Path | None, wake: Callable[[], None], log: logging.Logger) -> None:
        """`wake` whoever asks: there is one more."""
        self._kept, self._wake, self._log = kept, wake, log
        self._known: dict[bytes, bytes | None] = {}  # by marks; None: it is being read, or cannot be
        self._missed = set[bytes]()  # marks that were looked for in vain
        self._again: dict[bytes, float] = {}  # marks whose files could not be read: when that is tried again

    def of(self, folder: str, marks: bytes) -> bytes | None:
        """None while it is not known, or if the files are others now."""
        if self._is_due(marks) and self.look(folder) != marks and marks not in self._missed:
            self._missed.add(marks)
            self._log.warning("KV blocks of weights whose files in %s have changed since are not kept", folder)
        return self._known.get(marks)

    def look(self, folder: str) -> bytes | None:
        """Begin to find it out, unless that was begun; the marks that it has now."""
        try:
            marks = folder_marks(folder)
        except OSError as error:
            self._log.debug("no KV blocks are kept: the model's files cannot be read: %s", error)
            return None
        if self._is_due(marks):
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._again.pop(marks, None)
            self._known[marks] = None
            threading.Thread(target=self._read, args=(folder, marks), daemon=True).start()
        return marks

    def _is_due(self, marks: bytes) -> bool:
        """Was it not begun, or did it fail a while ago?"""
        return marks not in self._known or time.monotonic() >= self._again.get(marks, math.inf)

    def _read(self, folder: str, marks: bytes) -> None:
        try:
            found = model_identity(folder, self._kept)
            if folder_marks(folder) == marks:
                self._known[marks] = found
        except OSError as error:
            self._again[marks] = time.monotonic() + AGAIN_S
            self._log.error("no KV blocks are kept: the model's files cannot be read: %s", error)
        self._wake()
