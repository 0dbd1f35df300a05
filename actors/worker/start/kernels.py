"""Which kernels, and how many threads, a worker of a CPU computes with: where bits are promised, those of the first.

The first worker of a model, of whichever engine, writes its choice into a memory file of the supervisor's
(shm/kernels.py), so that nobody who goes on with a request computes otherwise, whatever has become of the compiler, the
cache, the sources or the number of cores since. The library itself lies there, too: a later life needs neither compiler
nor files, and has the kernels that its own code was written for where other code is on disk by then. Other code, and
other options (`actorserve restart`), choose anew.

Who dies before the choice is written leaves nothing, and has computed nothing; behind that, what the next one takes. If
the same kernels cannot be had all the same, as where a system lets no memory be a library and the cache is gone, a
worker says why, and ends to be tried again: requests wait. Where no bits are promised it takes torch's, and the next
life tries again.
"""

from __future__ import annotations

import sys
import time
from hashlib import blake2b
from pathlib import Path

from actorserve.kernels.cpu.native.compiler import NativeError
from actorserve.kernels.cpu.native.library import Image, Library, load, load_image
from actorserve.shm.kernels import Choice, KernelsFile

from ...model.config_json import find_architecture
from ...model.info import read_json
from ...model.memory.machine import cpu_flags
from ...runtime.process import RENEW, Context
from ..cpu.layers import native
from ..kept_memory.tier import code_digest

OPTIONS = ("cpu_kernels", "threads", "deterministic")
AGAIN_S = 1.0
TROUBLE = "torch: "  # how native.py begins to say why it is not our own
STAYS = "until the server is started again, since bits are promised"


def promises_bits(context: Context) -> bool:
    """Is a token of this model to have the same bits in every batch, and in each life?"""
    config = context.config
    if config.deterministic:
        return True
    values = read_json(Path(context.model.folder) / "config.json")
    shape = find_architecture(values, config.model_impl, config.quantization)
    return shape is not None and shape.quantization.batch_invariant


def use_kernels(context: Context, threads: int, promised: bool = False) -> int:
    """From now on they are computed with, by so many threads, which are returned; where bits are promised, by as many
    as the first worker has."""
    handed = _HandedOn(context)
    try:
        threads, words = handed.as_the_first(threads) if promised else (threads, handed.start(threads))
    except (NativeError, TimeoutError) as error:
        context.log.error("kernels: %s; requests wait until they can be had", error)
        time.sleep(AGAIN_S)
        sys.exit(RENEW)
    library = native.current()
    slow = words.startswith(TROUBLE) or (library is not None and library.lack)
    (context.log.warning if slow else context.log.info)("kernels: %s", words)
    return threads


class _HandedOn:
    """What workers have left, and this one leaves."""

    def __init__(self, context: Context) -> None:
        self._file = KernelsFile(context.files["kernels"], len(context.system.models), context.served.index)
        self._config, self._log, self._code = context.config, context.log, code_digest()
        said = repr((self._code, [getattr(self._config, name) for name in OPTIONS]))
        self._digest = blake2b(said.encode(), digest_size=len(self._code)).digest()

    def as_the_first(self, threads: int) -> tuple[int, str]:
        """(how many threads it is, which kernels, and why); NativeError if the first worker's cannot be had."""
        first = self._file.choice(self._digest)
        if first is None:
            words = self.start(threads)
            library = native.current()
            own = Choice("" if library is None else library.variant, threads)
            first = self._file.choose(self._digest, own)
            if first == own:
                return threads, f"{words}; {STAYS}" if words.startswith(TROUBLE) else words
        return first.threads, self._again(first)

    def start(self, threads: int) -> str:
        """Choose, as --cpu-kernels says; which they are, and why."""
        return native.start(self._config.cpu_kernels, threads, self._find)

    def _again(self, first: Choice) -> str:
        """Take what the first worker has; which that is."""
        option = self._config.cpu_kernels
        if not first.kernels:
            words = native.start("torch", first.threads)
            return words if option == "torch" else "torch, as the workers before had"
        library = self._find()
        if library.variant != first.kernels:
            raise NativeError(f"they are {library.variant}, and the workers before had {first.kernels}")
        return native.start(option, first.threads, lambda: library)

    def _find(self) -> Library:
        """That of the workers before, or one that is left to those behind."""
        if (left := self._file.library(self._code)) is not None:
            try:
                return load_image(Image(*left))
            except NativeError as error:
                self._log.info("kernels: %s", error)
        return load(cpu_flags(), keep=lambda image: self._file.leave(self._code, *image))
