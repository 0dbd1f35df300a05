"""What gives the numbers in a KV block their meaning, as a digest: blocks of one fingerprint are the same wherever they
were computed. Whatever may change it changes the name under which blocks are found.

    the model's files     by their contents; of the hub's cache by the names that these have there
    options               those that a worker computes by
    the worker's word     KV layout and type, dtype, members of the group, code and libraries (worker/tier.py)
    a block's own key     tokens, pictures, cache salt, adapter (protocol/block_hash.py)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from ..options.config import Config

FORMAT = 1  # of arena slots and files
OPTIONS = (
    "dtype quantization model_impl deterministic load_format seed max_model_len kv_cache_dtype block_size "
    "tensor_parallel_size enable_expert_parallel cpu_kernels trust_remote_code mm_processor_kwargs media_io_kwargs "
    "max_media_pixels"
).split()
FILES = (".safetensors", ".bin", ".pt", ".gguf", ".py")  # beside config.json
LARGE = 32 << 20  # bytes of a file whose digest is kept
DIGESTS = ".digests"  # folder for these


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
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and (path.suffix in FILES or path.name == "config.json"):
            found.update(repr((path.name, path.stat().st_size, _digest(path, kept))).encode())
    return found.digest()


def _digest(path: Path, kept: Path | None) -> str:
    target = path.resolve()
    if target.parent.name == "blobs" and len(target.name) == 64:  # of the hub's cache: the contents' SHA-256
        return target.name
    stat = target.stat()
    marks = repr((str(target), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    if kept is None:
        return marks
    if stat.st_size < LARGE:
        return _read(target)
    place = kept / DIGESTS / hashlib.sha256(marks.encode()).hexdigest()
    try:
        text = place.read_text()
        if len(text) == 64:
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
