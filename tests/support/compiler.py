"""The machine's C compiler, which no package brings along: without one the server computes by torch's kernels."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from actorserve.kernels.cpu.native.library import NativeError, cache_folder, find_compiler


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
