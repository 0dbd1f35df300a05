"""The file of a library of kernels: what it is compiled of, what it is called, and where it is kept.

Its name holds a hash of sources and flags, and one of the compiler. It is written in a folder of its own and renamed,
so that one who is killed while it compiles leaves a whole library or none; what the killed leave behind, a later start
removes. Of those who start at once, as workers do, one compiles, and the others wait for it. Behind it stands its
digest: what a disk has damaged would end the process that loads it, and is compiled again. A folder that others may
write is not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from .compiler import COMPILE_SECONDS, identity, run
from .variants import Variant

FOLDER = Path(__file__).parent
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # each operation rounds by itself
COMMON = ("-std=gnu11", "-O3", "-fPIC", "-pthread", "-Wno-psabi", *EXACT)
STALE_SECONDS = 3600.0  # a folder that is being compiled in is not as old
NEW = ".new-"
POLL_SECONDS = 0.05
DIGEST = hashlib.sha256


def cached(path: Path, own: Variant, compiler: Sequence[str]) -> float:
    """Sees that it is there; how many seconds it took to compile it."""
    if _is_there(path):
        return 0.0
    with _first(path.parent):
        if _is_there(path):
            return 0.0
        _remove_stale(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=NEW, ignore_cleanup_errors=True) as folder:
            made = Path(folder) / path.name
            seconds = compile_library(compiler, own, made)
            _seal(made)
            made.rename(path)
    return seconds


def _is_there(path: Path) -> bool:
    return is_ours(path) and is_whole(path)


@contextmanager
def _first(folder: Path) -> Iterator[None]:
    """One process after the other. Whoever holds it and is killed lets go of it; who is stopped is not waited for."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + COMPILE_SECONDS
        while not _locked(descriptor) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)  # nothing tells that a lock is free, within a time
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def sources() -> list[Path]:
    """All files that the library is made of."""
    return sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])


def file_name(variant: Variant, compiler: Sequence[str]) -> str:
    """Of the library that this compiler makes."""
    return f"{made_of(variant)}-{_digest(identity(compiler)).hexdigest()[:16]}.so"


def made_of(variant: Variant) -> str:
    """How the names begin of all that compilers make of the sources for this processor."""
    digest = _digest([platform.machine(), *COMMON, *variant.flags])
    for file in sources():
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"{variant.name}-{digest.hexdigest()[:24]}"


def _digest(words: Sequence[str]) -> hashlib._Hash:
    return hashlib.sha256("\0".join(words).encode())


def compile_library(compiler: Sequence[str], variant: Variant, target: Path) -> float:
    """Seconds that it took: files are compiled side by side, as many as there are cores."""
    begin = time.monotonic()
    files = [file for file in sources() if file.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = [Path(folder) / f"{file.stem}.o" for file in files]
        pairs = zip(files, made, strict=True)
        commands = [[*compiler, *COMMON, *variant.flags, "-c", str(file), "-o", str(out)] for file, out in pairs]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(run, commands):
                pass
        run([*compiler, "-shared", "-pthread", *map(str, made), "-o", str(target), "-lm"])
    target.chmod(0o700)
    return time.monotonic() - begin


def cache_folder() -> Path | None:
    """Where libraries are kept, made if need be; None where others may write it."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if is_ours(folder) else None


def is_ours(path: Path) -> bool:
    """Is it there, and can nobody else have written it?"""
    try:
        state = path.lstat()
    except OSError:
        return False
    kind = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return kind and state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_whole(path: Path) -> bool:
    content = path.read_bytes()
    size = len(content) - DIGEST().digest_size
    return size > 0 and DIGEST(content[:size]).digest() == content[size:]


def _seal(path: Path) -> None:
    """Its digest comes behind it, where no loader looks, and all of it is on the disk before others see it."""
    with path.open("r+b") as file:
        digest = DIGEST(file.read()).digest()
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def _remove_stale(folder: Path) -> None:
    """What the killed left behind."""
    for left in folder.glob(f"{NEW}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
