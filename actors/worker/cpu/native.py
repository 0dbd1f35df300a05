"""Which kernels a worker computes with on a CPU (`--cpu-kernels`): our own in C, where they can be had, or torch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from actorserve.kernels.cpu.native.library import Library, NativeError, load

from ...model.memory.machine import cpu_flags
from ...options.config import ConfigError

FEW_TOKENS = 64  # of a step whose products are short


class _Chosen:
    """The process's kernels: it has one set, as it has one number of torch's threads."""

    library: Library | None = None


def start(option: str, threads: int, variant: str | None = None) -> str:
    """Load what --cpu-kernels says, compiled if need be, for so many threads; the result says which and why."""
    _Chosen.library = None
    if option == "torch":
        return "torch (--cpu-kernels torch)"
    try:
        library = load(cpu_flags(), variant)
    except NativeError as error:
        if option == "native":
            raise ConfigError(f"--cpu-kernels native: {error}") from None
        return f"torch: {error}"
    library.set_threads(threads)
    _Chosen.library = library
    made = f", compiled once in {library.seconds:.1f} s" if library.seconds else ""
    return f"native ({library.variant}{made})"


def stop() -> None:
    """From now on torch's."""
    _Chosen.library = None


def current() -> Library | None:
    """Our own, if these are what is computed with."""
    return _Chosen.library


def threads() -> int:
    """That products take."""
    return torch.get_num_threads() if _Chosen.library is None else _Chosen.library.threads


@contextmanager
def awake(library: Library | None, tokens: int) -> Iterator[None]:
    """While a step of so many tokens is computed, threads wait awake for its next product, if these are short."""
    if library is None or tokens > FEW_TOKENS:
        yield
        return
    library.wake()
    try:
        yield
    finally:
        library.park()
