"""The machine's C compiler, which no package brings along: without one the server computes by torch's kernels."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.cache import cache_folder, file_name
from actorserve.kernels.cpu.native.compiler import NativeError, find_compiler
from actorserve.kernels.cpu.native.variants import variants


def need_compiler() -> None:
    """Skip a test of our own kernels where they cannot be made."""
    try:
        find_compiler()
    except NativeError as error:
        pytest.skip(str(error))


def cache_with_kernels(folder: Path) -> Path:
    """`folder` as a test's own $XDG_CACHE_HOME, with the kernels that are compiled already: that takes seconds."""
    made, known = folder / "actorserve" / "kernels", cache_folder()
    made.mkdir(mode=0o700, parents=True)
    for library in known.glob("*.so") if known else ():
        try:
            os.link(library, made / library.name)
        except OSError:  # of another file system
            shutil.copy2(library, made)
    return folder


class Compiler:
    """One of a test's own, for servers in its environment: it works, or not. What it would make is there."""

    def __init__(self, folder: Path) -> None:
        self.script, self.cache = folder / "cc", folder / "cache"
        self.environment = {"CC": str(self.script), "XDG_CACHE_HOME": str(self.cache)}
        self._kernels = self.cache / "actorserve" / "kernels"
        self.works()

    def works(self) -> None:
        """From now on, and the cache has what it makes."""
        made: list[native.Image] = []
        native.load(cpu_flags(), keep=made.append)
        self._becomes(f'exec {shlex.join(find_compiler())} "$@"')
        own = variants(cpu_flags())[0]
        self._kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._kernels / file_name(own, [str(self.script)])
        file.write_bytes(made[0].content)
        file.chmod(0o700)

    def fails(self) -> None:
        """From now on, and the cache is empty."""
        shutil.rmtree(self._kernels)
        self._becomes("echo error: no more >&2; exit 1")

    def _becomes(self, line: str) -> None:
        self.script.write_text(f"#!/bin/sh\n{line}\n")
        self.script.chmod(0o700)
