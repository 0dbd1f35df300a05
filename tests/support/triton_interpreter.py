"""Triton's interpreter, which plays a GPU where there is none, as fast as it goes.

TRITON_INTERPRET must be set by whoever imports this: it is read when Triton is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import triton.runtime.interpreter as interpreter


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once() -> Iterator[None]:
    """The interpreter replaces the functions of triton.language anew at each call of a function within a kernel, which
    is 40 % of its time; once for each launch will do. Without the names that this needs, all stays as it is."""
    original: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    if original is None or executor is None:
        yield
        return
    patched: set[frozenset[int]] = set()
    launch = executor.__call__

    def patch(function: Any) -> Any:
        modules = triton_modules(function)
        if modules not in patched:
            patched.add(modules)
            return original(function)
        return None

    def begin(self: Any, *arguments: Any, **options: Any) -> Any:
        patched.clear()
        return launch(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(interpreter, "_patch_lang", patch)
        monkey.setattr(executor, "__call__", begin)
        yield


@pytest.fixture(scope="session", autouse=True)
def types_are_looked_up_once() -> Iterator[None]:
    """The interpreter makes a table of all types for each that it looks up, and does so at each operation."""
    original: Callable[[Any], Any] | None = getattr(interpreter, "_get_np_dtype", None)
    if original is None:
        yield
        return
    found: dict[str, Any] = {}

    def look_up(kind: Any) -> Any:
        name = str(kind)  # of blocks with their shape, of pointers with what they point to
        if name not in found:
            found[name] = original(kind)
        return found[name]

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(interpreter, "_get_np_dtype", look_up)
        yield


def triton_modules(function: Any) -> frozenset[int]:
    """Which of the modules that are replaced a function sees."""
    modules = interpreter.tl, interpreter.tl.core
    return frozenset(id(value) for value in function.__globals__.values() if any(value is one for one in modules))
