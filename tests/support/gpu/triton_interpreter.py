"""Triton's interpreter, which plays a GPU where there is none, as fast as it goes.

TRITON_INTERPRET must be set by whoever imports this: it is read when Triton is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import os
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


@pytest.fixture(scope="session", autouse=True)
def sums_are_not_computed_twice() -> Iterator[None]:
    """The interpreter computes each sum of integers in 64 bits as well, compares, and asserts nothing: assertions of
    kernels are for its option `debug`, which nobody sets."""
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "debug", True) or not hasattr(options, "sanitize_overflow"):
        yield
        return
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(builder, "options", dataclasses.replace(options, sanitize_overflow=False))
        yield


@pytest.fixture(scope="session", autouse=True)
def shapes_are_made_once() -> Iterator[None]:
    """Each tensor has a shape, and its type one, of objects that have types of their own: these are the same for all
    tensors of a shape. A compiler's types are left as they are."""
    core: Any = interpreter.tl.core
    block_type, tensor = core.block_type, core.tensor
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    semantic: Any = type(interpreter.interpreter_semantic)
    make_type, make_tensor, same_type = block_type.__init__, tensor.__init__, core.dtype.__eq__
    make_alike = semantic.broadcast_impl_value
    types: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    names: dict[tuple[Any, str], str] = {}
    constants: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([one.value if isinstance(one, core.constexpr) else one for one in shape])
        named = (key, str(element_ty))
        if named not in names:
            make_type(self, element_ty, shape)
            types.setdefault(key, (self.shape, self.numel))
            names[named] = self.name
            return
        self.element_ty, self.name = element_ty, names[named]
        self.shape, self.numel = types[key]

    def value(self: Any, handle: Any, kind: Any) -> None:
        key = tuple(kind.shape.values) if kind.is_block() else ()
        if key not in constants:
            make_tensor(self, handle, kind)
            constants[key] = self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = constants[key]

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        alike = one.shape is other.shape if one.is_block() and other.is_block() else one.is_block() == other.is_block()
        return (lhs, rhs) if alike else make_alike(self, lhs, rhs)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(block_type, "__init__", block)
        monkey.setattr(tensor, "__init__", value)
        monkey.setattr(semantic, "broadcast_impl_value", broadcast)
        monkey.setattr(core.dtype, "__eq__", lambda self, other: self is other or same_type(self, other))
        yield


@functools.cache
def triton_modules(function: Any) -> frozenset[int]:
    """Which of the modules that are replaced a function sees."""
    modules = interpreter.tl, interpreter.tl.core
    return frozenset(id(value) for value in function.__globals__.values() if any(value is one for one in modules))
