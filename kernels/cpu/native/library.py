"""The CPU kernels in C: compiled once by the machine's C compiler, kept in the user's cache folder, loaded by ctypes.

For each kind of processor they are another library (variants.py): only that of this machine is compiled, in a second or
two. Where there is no compiler, what any has made of these sources is taken (cache.py). Where the cache is not used, or
lacks the library and is full or cannot be written, this is compiled anew at each start, but for later lives of a
server's workers, to which it is handed on. Where it cannot be had the caller is told why, and computes by torch.

One process, one library, one pool of threads, made at the first use: never before a fork. Knows no options.
"""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .cache import cache_folder, cached, compile_library, file_name, is_ours, is_whole, made_of
from .compiler import CompilerError, CompilerMissingError, NativeError, find_compiler
from .variants import Variant, variants

LINE = 64  # bytes of a cache line


class Image(NamedTuple):
    """A library as it is handed on."""

    name: str
    content: bytes


class Library:
    """The loaded kernels, and their threads."""

    def __init__(self, name: str, path: Path, seconds: float = 0.0) -> None:
        """`name`: that of its file, which begins with the variant's; `seconds` that it took to compile it; 0: it was
        there."""
        self.name, self.variant = name, name.partition("-")[0]
        self.seconds = seconds
        self.lack = ""  # why it is not the quickest that this processor runs, if it is another
        try:
            self.functions = ctypes.CDLL(str(path))
        except OSError as error:  # a folder from which nothing may be run
            raise NativeError(str(error)) from None
        self._declare("pool_create", ctypes.c_void_p, ctypes.c_int)
        self._declare("pool_destroy", None, ctypes.c_void_p)
        self.wake_pool = self._declare("pool_wake", None, ctypes.c_void_p)
        self.park_pool = self._declare("pool_park", None, ctypes.c_void_p)
        from .weight_memory import WeightMemory  # torch with it, which who only asks for the cache needs not

        self.weights = WeightMemory()
        self._pool: int | None = None
        self._scratch = ctypes.create_string_buffer(0)
        self.threads = 1

    def _declare(self, name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self.functions, name)
        function.restype, function.argtypes = result, arguments
        return function

    def function(self, name: str, *arguments: type) -> ctypes._NamedFuncPointer:
        """One that returns nothing."""
        return self._declare(name, None, *arguments)

    def size(self, name: str, *arguments: type) -> ctypes._NamedFuncPointer:
        """One that returns a number of 64 bits."""
        return self._declare(name, ctypes.c_int64, *arguments)

    def number(self, name: str) -> int:
        """What a function without arguments gives."""
        return int(self._declare(name, ctypes.c_int)())

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether products of two factors in bfloat16 are worth it, beside what else this processor has for them."""
        return platform.machine() == "x86_64"

    def set_threads(self, threads: int) -> None:
        """How many the pool has from now on; nothing may be computing."""
        if self._pool is not None:
            self.functions.pool_destroy(self._pool)
            self._pool = None
        self.threads = threads

    @property
    def pool(self) -> int:
        """The pool's address."""
        if self._pool is None:
            self._pool = self.functions.pool_create(self.threads)
            if self._pool is None:
                raise MemoryError(f"allocate memory for {self.threads} threads")
        return self._pool

    def scratch(self, size: int) -> int:
        """The address of so many bytes, good until the next call: one product at a time is computed."""
        if len(self._scratch) < size + LINE:
            self._scratch = ctypes.create_string_buffer(2 * size + LINE)
        address = ctypes.addressof(self._scratch)
        return address + -address % LINE

    @contextmanager
    def apart(self, size: int) -> Iterator[tuple[int, int]]:
        """(a pool of one thread, the address of so many bytes) for who computes beside others."""
        pool = self.functions.pool_create(1)
        if pool is None:
            raise MemoryError("allocate memory for a thread")
        try:
            memory = ctypes.create_string_buffer(size + LINE)
            address = ctypes.addressof(memory)
            yield pool, address + -address % LINE
        finally:
            self.functions.pool_destroy(pool)

    def wake(self) -> None:
        """A step begins: until `park` threads wait for work awake."""
        self.wake_pool(self.pool)

    def park(self) -> None:
        """The step has ended."""
        self.park_pool(self.pool)


def load(flags: Set[str], variant: str | None = None, keep: Callable[[Image], None] | None = None) -> Library:
    """The kernels for a processor with these flags, compiled if need be; NativeError says why there are none. `keep` is
    given what load_image takes."""
    found = [one for one in variants(flags) if variant in (None, one.name)]
    if not found:
        raise NativeError(f"this processor has no {variant}")
    try:
        compiler = find_compiler()
    except CompilerMissingError as error:
        return _left(found, error, keep)
    errors: list[CompilerError] = []
    for own in found:
        try:
            library = _load(own, compiler, keep)
        except CompilerError as error:
            errors.append(error)
            continue
        library.lack = f"not {found[0].name}: {errors[0]}" if errors else ""
        return library
    raise errors[0]


def _left(found: Sequence[Variant], error: NativeError, keep: Callable[[Image], None] | None) -> Library:
    """What a compiler that is not there has made of these sources, as in an image; if it has made none, the error."""
    if (folder := cache_folder()) is None:
        raise error
    for own in found:
        for path in sorted(folder.glob(f"{made_of(own)}-*.so")):
            with suppress(OSError, NativeError):  # it may not be read, or is another machine's: there may be others
                if is_ours(path) and is_whole(path):
                    library = _loaded(path, 0.0, keep)
                    library.lack = f"not {found[0].name}: {error}" if own != found[0] else ""
                    return library
    raise error


def _load(own: Variant, compiler: Sequence[str], keep: Callable[[Image], None] | None) -> Library:
    try:
        name = file_name(own, compiler)
        if (folder := cache_folder()) is not None:
            with suppress(OSError):  # it is full, or may not be written
                return _loaded(folder / name, cached(folder / name, own, compiler), keep)
        with tempfile.TemporaryDirectory(prefix="actorserve-kernels-") as private:
            path = Path(private) / name
            return _loaded(path, compile_library(compiler, own, path), keep)
    except OSError as error:
        raise NativeError(str(error)) from None


def _loaded(path: Path, seconds: float, keep: Callable[[Image], None] | None) -> Library:
    library = Library(path.name, path, seconds)
    if keep is not None:
        with suppress(OSError):  # somebody has just removed it
            keep(Image(path.name, path.read_bytes()))
    return library


def load_image(image: Image) -> Library:
    """The same kernels again, whatever has become of their file and of the compiler; NativeError: the system does not
    let memory be a library."""
    file = -1
    try:
        file = os.memfd_create("actorserve-kernels", os.MFD_CLOEXEC)  # it stays: what is loaded is known by its name
        with open(file, "wb", closefd=False) as memory:
            memory.write(image.content)
        return Library(image.name, Path(f"/proc/self/fd/{file}"))
    except (OSError, NativeError) as error:
        if file >= 0:
            os.close(file)
        raise NativeError(f"{image.name} in memory: {error}") from None
