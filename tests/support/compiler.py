"""The machine's C compiler, which no package brings along: without one the server computes by torch's kernels."""

from __future__ import annotations

import pytest

from actorserve.kernels.cpu.native.library import NativeError, find_compiler


def need_compiler() -> None:
    """Skip a test of our own kernels where they cannot be made."""
    try:
        find_compiler()
    except NativeError as error:
        pytest.skip(str(error))
