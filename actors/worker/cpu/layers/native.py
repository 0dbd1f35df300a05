"""Which kernels a worker computes with on a CPU (`--cpu-kernels`): our own in C, where they can be had, or torch's."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from actorserve.kernels.cpu.native.compiler import NativeError
from actorserve.kernels.cpu.native.library import Library, load
from actorserve.kernels.cpu.native.linear import int8_linear
from actorserve.kernels.cpu.native.weight_memory import WeightMemory

from ....model.memory.machine import cpu_flags
from ....options.config import ConfigError
from ...weight_cache.quiet import QUIET

LARGE = 256 << 20  # bytes of weights, from which on the number of threads is tried
TRIAL = 16384, 4096  # of a weight of 64 MB
TRIAL_ROUNDS = 4
TRIAL_S = 0.6  # until it is believed that several threads are no quicker than one
NEARLY = 1.05
FEW_TOKENS = 64  # of a step whose products are short


class _Chosen:
    """The process's kernels: it has one set, as it has one number of torch's threads."""

    library: Library | None = None


def choose(option: str, find: Callable[[], Library] | None = None) -> tuple[Library | None, str]:
    """The kernels that --cpu-kernels says, compiled if need be, None for torch's; and which they are, and why. `find`
    gives our own, if not `load` does."""
    if option == "torch":
        return None, "torch (--cpu-kernels torch)"
    try:
        library = load(cpu_flags()) if find is None else find()
    except NativeError as error:
        if option == "native":
            raise ConfigError(f"--cpu-kernels native: {error}") from None
        return None, f"torch: {error}"
    made = f", compiled once in {library.seconds:.1f} s" if library.seconds else ""
    lack = f"; {library.lack}" if library.lack else ""
    return library, f"native ({library.variant}{made}{lack})"


def start(option: str, threads: int, find: Callable[[], Library] | None = None) -> str:
    """From now on these are what is computed with, by so many threads; the result says which and why."""
    _Chosen.library, words = choose(option, find)
    if _Chosen.library is not None:
        _Chosen.library.set_threads(threads)
    return words


def stop() -> None:
    """From now on torch's."""
    _Chosen.library = None


def current() -> Library | None:
    """Our own, if these are what is computed with."""
    return _Chosen.library


def useful_threads(cores: int, weight_bytes: int) -> int:
    """How many threads of up to `cores` a model of so many bytes is given.

    More than one less than there are cores only if a product of our own is quicker by them: that is tried, in some
    tenths of a second at most, with a weight that no cache holds. A small model does not pay for that.
    """
    library, usual = _Chosen.library, max(1, cores - 1)
    if library is None or cores < 2 or weight_bytes < LARGE:
        return usual
    rows, columns = TRIAL
    weight = torch.ones(rows, columns, dtype=torch.int8)
    product = int8_linear(library, weight, torch.ones(rows), None, WeightMemory())  # dropped with it
    x = torch.ones(1, columns)

    def seconds(count: int) -> float:
        library.set_threads(count)
        with awake(library, 1):
            product(x)  # wakes them
            begin = time.perf_counter()
            product(x)
            return time.perf_counter() - begin

    library.set_threads(try_threads(seconds, sorted({1, cores // 4, cores // 2, usual, cores} - {0})))
    return library.threads


def try_threads(
    seconds: Callable[[int], float], counts: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> int:
    """Which of these numbers of threads to take, by what a product takes with each; ascending, from 1.

    Where one is as quick as several it is tried longer: others may have had the cores just then, and a server that
    began beside them would have one thread ever after.
    """
    took, end = dict.fromkeys(counts, math.inf), clock() + TRIAL_S
    for number in itertools.count(1):
        for count in counts:
            took[count] = min(took[count], seconds(count))
        found = fewest_useful(took)
        if number >= TRIAL_ROUNDS and (found > 1 or clock() > end):
            return found
    raise AssertionError("it has no end")


def fewest_useful(took: Mapping[int, float]) -> int:
    """Of seconds by the number of threads: the least number that is nearly as quick as any."""
    return min(count for count, seconds in took.items() if seconds <= NEARLY * min(took.values()))


@contextmanager
def awake(library: Library | None, tokens: int) -> Iterator[None]:
    """While a step of so many tokens is computed what can wait waits, and threads wait awake for its next product, if
    these are short."""
    if library is None:
        yield
        return
    QUIET.begin()
    is_short = tokens <= FEW_TOKENS
    if is_short:
        library.wake()
    try:
        yield
    finally:
        if is_short:
            library.park()
        QUIET.end()
