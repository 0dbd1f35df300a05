"""The memory that imports have filled, in a file: a template puts it there, and maps that in its place.

To import torch allocates 75 MB for its operators, and 40 for objects of Python, of which a worker touches a fifth in
all its life. In a file only what is touched counts as a process's memory; the rest is page cache, which the kernel
writes out and drops where it needs room, also on a machine without swap, and reads again. A page that is written to
becomes the process's own, as behind a fork.

The file has no name, is nobody else's to read, and ends with the last process that has it mapped. It holds what the
template has got since it began, so nothing of the server's options and keys. Where there is no C compiler, no cache
folder on a disk of this machine or little memory, or where another thread runs, all stays as it is; so it does with an
allocator that gives pages back (MADV_DONTNEED) and takes them for zeros then, where the file's would be there again:
glibc does that in the arenas of threads alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import sysconfig
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actorserve.kernels.cpu.native.compiler import (
    FULL,
    CompilerMissingError,
    NativeError,
    find_compiler,
    identity,
    run,
)
from actorserve.shm.free_memory import available_bytes

from ...model.cached import cache_folder, cached_folder
from ...options.config import ConfigError
from .mappings import Mapping

SOURCE = Path(__file__).with_suffix(".c")
KIND, LIBRARY = "templates", "memory_file.so"
COMPILE_S = 10.0  # for which whoever starts waits; it takes a hundredth
LEAST = 1 << 20  # bytes of a range that is worth a mapping of its own
LIMIT_MS = 2000  # for the writing, for which whoever starts waits; it takes a fortieth
SHARE = 8  # of the memory that is free; of more the kernel would make the writer wait for the disk
PLAIN = frozenset("rd wr mr mw me ac nr sd hg nh".split())  # flags: not wiped at a fork, locked or of huge pages


def own_memory(mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """(start, end) of what the process has allocated. Its stacks have flags or names of their own; behind an arena of a
    thread is what that may grow into.
    """
    reserved = {one.start for one in mappings if one.permissions == "---p"}
    return [
        (one.start, one.end)
        for one in mappings
        if one.permissions == "rw-p" and not one.is_of_file and one.name in ("", "[heap]") and one.flags <= PLAIN
        if one.end not in reserved
    ]


def is_fit(mappings: Iterable[Mapping]) -> bool:
    """Is memory allocated as glibc does it, and by Python in arenas?"""
    malloc = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    (library,) = (one.name for one in mappings if one.start <= malloc < one.end)
    return Path(library).name.startswith(("libc.so.6", "libc-2.")) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def grown(before: Iterable[tuple[int, int]], now: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is in ranges `now` and was not in any `before`, in order, where it is worth it."""
    old = sorted(before)
    for start, end in now:
        for low, high in [*((low, high) for low, high in old if low < end and high > start), (end, end)]:
            if low - start >= LEAST:
                yield start, low
            start = max(start, high)


def map_function() -> Any:
    """That of SOURCE, which `put_away` needs; None where there is no compiler, or others may write what was compiled.

    It is to be had before `mappings` are read: to compile and to load it changes them.
    """
    try:
        return _loaded(find_compiler())
    except CompilerMissingError:
        return None
    except (NativeError, OSError, ConfigError) as error:
        if isinstance(error, NativeError) or any(sign in str(error) for sign in FULL):  # else there is no cache folder
            print(f"what imports have allocated is not put into a file: {error}", file=sys.stderr)
        return None


def put_away(before: Iterable[tuple[int, int]], mappings: Sequence[Mapping], map_from_file: Any) -> int:
    """Put into a file what the process has got since it had these ranges; how many bytes are there now."""
    ranges = list(grown(before, own_memory(mappings)))
    size = sum(end - start for start, end in ranges)
    if not size or size > available_bytes() // SHARE or len(os.listdir("/proc/self/task")) > 1 or not is_fit(mappings):
        return 0
    try:
        with tempfile.TemporaryFile(dir=cache_folder(), buffering=0) as file:
            words = array("Q", [word for start, end in ranges for word in (start, end - start)])
            return int(map_from_file(file.fileno(), words.buffer_info()[0], len(ranges), LIMIT_MS))
    except (OSError, ConfigError):
        return 0


def _loaded(compiler: Sequence[str]) -> Any:
    parent = cache_folder() / KIND
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made_of = [SOURCE.read_text(), platform.machine(), *identity(compiler)]
    folder = cached_folder(KIND, SOURCE.stem, made_of, lambda: {LIBRARY: _compiled(compiler)})
    if not (_is_ours(parent) and _is_ours(folder)):
        return None
    function = ctypes.CDLL(str(folder / LIBRARY)).map_from_file
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int64
    return function


def _compiled(compiler: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="actorserve-") as folder:
        made = Path(folder) / LIBRARY
        run([*compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE)], COMPILE_S)
        return made.read_bytes()


def _is_ours(path: Path) -> bool:
    """Can nobody else have written there?"""
    state = path.lstat()
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022
