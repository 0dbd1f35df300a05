"""The CPU kernels in C: compiled once by the machine's C compiler, kept in the user's cache folder, loaded by ctypes.

For each kind of processor they are another library (VARIANTS): only that of this machine is compiled, in a second or
two. Its name holds a hash of sources and flags, and one of the compiler; where there is no compiler, what any has made
of these sources is taken. It is written in a folder of its own and renamed, so that two who start at once, or one who
is killed while it compiles, leave a whole library or none; what the killed leave behind, a later start removes. Behind
it stands its digest: what a disk has damaged would end the process that loads it, and is compiled again. A cache that
others may write is not used. Where there is none, or it lacks the library and is full or cannot be written, this is
compiled anew at each start, but for later lives of a server's workers, to which it is handed on. Where it cannot be had
the caller is told why, and computes by torch.

One process, one library, one pool of threads, made at the first use: never before a fork. Knows no options.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .compiler import CompilerError, CompilerMissingError, NativeError, find_compiler, identity, run

FOLDER = Path(__file__).parent
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")  # each operation rounds by itself
COMMON = ("-std=gnu11", "-O3", "-fPIC", "-pthread", "-Wno-psabi", *EXACT)
STALE_SECONDS = 3600.0  # a folder that is being compiled in is not as old
NEW = ".new-"
DIGEST = hashlib.sha256
LINE = 64  # bytes of a cache line


class Variant(NamedTuple):
    """The kernels for one kind of processor."""

    name: str
    machine: str  # as platform.machine says; "" is any
    needs: frozenset[str]  # of the processor, in the kernel's names
    flags: tuple[str, ...]


def _x86(name: str, needs: str, flags: str) -> Variant:
    return Variant(name, "x86_64", frozenset(needs.split()), tuple(flags.split()))


_AVX512 = "avx512f avx512bw avx512vl avx512dq avx512_vnni fma f16c"
_AVX512_FLAGS = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c"
PAIRS, PLAIN = "avx512bf16", "avx512"  # with products of two pairs of bfloat16, and of single numbers alone
PAIRS_TAKE_LONGER = "GenuineIntel"  # on Sapphire Rapids four times as long as single numbers: so these are quicker
ASKS_LATER = "AuthenticAMD"  # Zen 4 by AVX2: with prefetches one row takes up to 2.6 times as long, 8 rows 0.8 to 1
VARIANTS = (  # the first that the processor has is taken
    _x86(
        "amx",
        f"{_AVX512} amx_tile amx_int8 amx_bf16",
        f"{_AVX512_FLAGS} -mamx-tile -mamx-int8 -mamx-bf16",
    ),
    _x86(PAIRS, f"{_AVX512} avx512_bf16", f"{_AVX512_FLAGS} -mavx512bf16"),
    _x86(PLAIN, _AVX512, _AVX512_FLAGS),
    _x86("avxvnni", "avx2 avx_vnni fma f16c", "-mavx2 -mavxvnni -mfma -mf16c"),
    _x86("avx2", "avx2 fma f16c", "-mavx2 -mfma -mf16c"),
    Variant("dotprod", "aarch64", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
    Variant("plain", "", frozenset(), ()),
)


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


def variants(flags: Set[str]) -> list[Variant]:
    """Those that a processor with these flags runs, the quickest first."""
    machine = platform.machine()
    found = [one for one in VARIANTS if one.machine in ("", machine) and one.needs <= flags]
    names = [one.name for one in found]
    if PAIRS_TAKE_LONGER in flags and PAIRS in names and PLAIN in names:
        found.insert(names.index(PLAIN), found.pop(names.index(PAIRS)))
    if ASKS_LATER in flags:
        found = [one._replace(flags=(*one.flags, "-DASKS_FROM=3")) for one in found]
    return found


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
        for path in sorted(folder.glob(f"{_made_of(own)}-*.so")):
            with suppress(OSError, NativeError):  # it may not be read, or is another machine's: there may be others
                if _is_ours(path) and _is_whole(path):
                    library = _loaded(path, 0.0, keep)
                    library.lack = f"not {found[0].name}: {error}" if own != found[0] else ""
                    return library
    raise error


def _load(own: Variant, compiler: Sequence[str], keep: Callable[[Image], None] | None) -> Library:
    try:
        name = file_name(own, compiler)
        if (folder := cache_folder()) is not None:
            with suppress(OSError):  # it is full, or may not be written
                return _loaded(folder / name, _cached(folder / name, own, compiler), keep)
        with tempfile.TemporaryDirectory(prefix="actorserve-kernels-") as private:
            path = Path(private) / name
            return _loaded(path, _compile(compiler, own, path), keep)
    except OSError as error:
        raise NativeError(str(error)) from None


def _cached(path: Path, own: Variant, compiler: Sequence[str]) -> float:
    """Sees that it is there; how many seconds it took to compile it."""
    if _is_ours(path) and _is_whole(path):
        return 0.0
    _remove_stale(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=NEW, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / path.name
        seconds = _compile(compiler, own, made)
        _seal(made)
        made.rename(path)
    return seconds


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


def sources() -> list[Path]:
    """All files that the library is made of."""
    return sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])


def file_name(variant: Variant, compiler: Sequence[str]) -> str:
    """Of the library that this compiler makes."""
    return f"{_made_of(variant)}-{_digest(identity(compiler)).hexdigest()[:16]}.so"


def _made_of(variant: Variant) -> str:
    """How the names begin of all that compilers make of the sources for this processor."""
    digest = _digest([platform.machine(), *COMMON, *variant.flags])
    for file in sources():
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"{variant.name}-{digest.hexdigest()[:24]}"


def _digest(words: Sequence[str]) -> hashlib._Hash:
    return hashlib.sha256("\0".join(words).encode())


def cache_folder() -> Path | None:
    """Where libraries are kept, made if need be; None where others may write it."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _is_ours(folder) else None


def _is_ours(path: Path) -> bool:
    """Is it there, and can nobody else have written it?"""
    try:
        state = path.lstat()
    except OSError:
        return False
    kind = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return kind and state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_whole(path: Path) -> bool:
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


def _compile(compiler: Sequence[str], variant: Variant, target: Path) -> float:
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
