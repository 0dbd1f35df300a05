"""What workers compute with, told to those behind them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from actorserve.shm import kernels
from actorserve.shm.kernels import Choice, KernelsFile

from .aborting import every_abort

CODE, OTHER = bytes(range(32)), bytes(range(1, 33))
NATIVE, TORCH = Choice("avx512", 3), Choice("", 2)
LIBRARY = "avx512-1.so", bytes(range(256)) * 40


def made(models: int = 2, model: int = 1) -> KernelsFile:
    return KernelsFile(KernelsFile.create(), models, model)


def test_the_first_choice_stays() -> None:
    first = made()
    other_model = KernelsFile(first._fd, 2, 0)
    assert first.choice(CODE) is None and first.choose(CODE, NATIVE) == NATIVE
    assert first.choose(CODE, TORCH) == NATIVE == first.choice(CODE)
    assert other_model.choice(CODE) is None and other_model.choose(CODE, TORCH) == TORCH
    assert first.choice(CODE) == NATIVE


def test_one_of_other_code_is_none() -> None:
    file = made()
    file.choose(CODE, NATIVE)
    file.leave(CODE, *LIBRARY)
    assert file.choice(OTHER) is None and file.library(OTHER) is None
    assert file.choose(OTHER, TORCH) == TORCH and file.choice(CODE) is None
    file.leave(OTHER, "plain-2.so", b"shorter")
    assert file.library(OTHER) == ("plain-2.so", b"shorter") and file.library(CODE) is None


def test_a_library_is_left_once_for_all_models() -> None:
    file = made()
    assert file.library(CODE) is None
    file.leave(CODE, *LIBRARY)
    file.leave(CODE, "avx512-2.so", b"made at the same time")
    file.choose(CODE, NATIVE)
    assert KernelsFile(file._fd, 2, 0).library(CODE) == LIBRARY == file.library(CODE)


@pytest.mark.parametrize("before", [False, True])
def test_a_death_leaves_all_or_nothing(before: bool) -> None:
    def scene() -> KernelsFile:
        file = made()
        if before:
            file.choose(OTHER, TORCH)
            file.leave(OTHER, "plain-2.so", b"shorter")
        return file

    def act(file: KernelsFile) -> Callable[[], object]:
        def both() -> None:
            file.choose(CODE, NATIVE)
            file.leave(CODE, *LIBRARY)

        return both

    for file, was_aborted in every_abort(scene, act, (kernels,)):
        assert file.choice(CODE) in ((None, NATIVE) if was_aborted else (NATIVE,))
        assert file.library(CODE) in ((None, LIBRARY) if was_aborted else (LIBRARY,))
        assert file.choice(OTHER) in ((None, TORCH) if before else (None,))
        file.leave(CODE, *LIBRARY)
        assert file.choose(CODE, NATIVE) == NATIVE and file.library(CODE) == LIBRARY
        os.close(file._fd)


def test_who_dies_with_the_lock_keeps_it_from_nobody() -> None:
    file = made()
    child = os.fork()
    if not child:
        with file._locked():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert file.choose(CODE, NATIVE) == NATIVE


def test_who_stands_still_with_the_lock_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PATIENCE_S", 0.0)
    file = made()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        with file._locked():
            os.write(write_end, b".")
            signal.pause()
    os.read(read_end, 1)
    with pytest.raises(TimeoutError, match="another worker stands still"):
        file.choice(CODE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert file.choose(CODE, NATIVE) == NATIVE
