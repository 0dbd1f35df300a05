"""Triton's interpreter, which plays a GPU where there is none, as fast as it goes.

TRITON_INTERPRET must be set by whoever imports this: it is read when Triton is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import triton.runtime.interpreter as interpreter

from .quick_operations import MOST_INTEGER, quick

MOST_KEPT = 4096  # elements of a number's tensor


@contextlib.contextmanager
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


@contextlib.contextmanager
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


@contextlib.contextmanager
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


@contextlib.contextmanager
def products_sum_in_one_order() -> Iterator[None]:
    """A GPU's product of tiles sums each row in one order. The interpreter's is BLAS', which on some processors, or by
    some of its kernels (OPENBLAS_CORETYPE), gives a row other bits by its place in the tile."""
    builder: Any = getattr(interpreter, "InterpreterBuilder", None)
    original: Any = getattr(builder, "create_dot", None)
    if original is None:
        yield
        return

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if any(one.dtype.is_floating() and one.dtype.primitive_bitwidth == 8 for one in (a, b)):
            return original(self, a, b, d, *options)
        made = numpy.einsum("...ik,...kj->...ij", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(made + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(builder, "create_dot", create_dot)
        yield


@contextlib.contextmanager
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
        key = tuple([one.value if type(one) is core.constexpr else one for one in shape])
        named = (key, element_ty.name)
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


@contextlib.contextmanager
def operations_are_wrapped_once() -> Iterator[None]:
    """The language's operations are looked for at each launch, and at each call of one another dictionary is
    made of its arguments, and passed by a function that asks whether it is complete."""
    core: Any = interpreter.tl.core
    original: Any = getattr(interpreter, "_patch_builtin", None)
    semantic: Any = getattr(interpreter, "interpreter_semantic", None)
    if original is None or semantic is None:
        yield
        return
    asks = core.builtin(lambda: None).__code__
    unwrap = core._unwrap_if_constexpr
    plain = frozenset({core.tensor, int, float, bool, str, type(None)})

    def wrapped(member: Any) -> Any:
        inner = member.__wrapped__ if getattr(member, "__code__", None) is asks else member

        def call(*arguments: Any, **options: Any) -> Any:
            options["_semantic"] = semantic
            return inner(*arguments, **options)

        return call

    def operations(package: Any) -> list[tuple[str, Any]]:
        members = [(name, wrapped(one)) for name, one in inspect.getmembers(package) if core.is_builtin(one)]
        if package not in (interpreter.tl, core, core.tensor):  # those of a descriptor have other arguments
            return members
        return [(name, quick(name, one, package is core.tensor)) for name, one in members]

    places = (interpreter.tl, core, interpreter.tl.math, core.tensor, core.tensor_descriptor_base)
    found = {id(place): operations(place) for place in places}  # now, when none is replaced

    def patch(package: Any, builder: Any, scope: Any) -> None:
        if id(package) not in found:
            original(package, builder, scope)
        for name, one in found.get(id(package), ()):
            scope.set_attr(package, name, one)

    def value_of(one: Any) -> Any:
        kind = type(one)
        if kind is core.constexpr:
            return one.value
        return one if kind in plain else unwrap(one)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(interpreter, "_patch_builtin", patch)
        monkey.setattr(core, "_unwrap_if_constexpr", value_of)
        yield


@contextlib.contextmanager
def operands_alike_are_not_compared() -> Iterator[None]:
    """Which type an operation computes in is asked of each two operands, and each number becomes a tensor twice. Two of
    one type keep it, integers and float32 also where they are divided, and so does a tensor beside a number that fits
    in; such numbers are made once for each shape. All other cases are Triton's to decide.
    """
    tl: Any = interpreter.tl
    semantic: Any = getattr(interpreter, "interpreter_semantic", None)
    if os.environ.get("TRITON_INTERPRET") != "1" or semantic is None:
        yield
        return
    kind_of: Any = type(semantic)
    tensor, decide = tl.core.tensor, kind_of.binary_op_type_checking_impl
    integers = {id(one) for one in (tl.int32, tl.int64)}
    kept = {*integers, *(id(one) for one in (tl.float32, tl.uint8, tl.uint32, tl.uint64))}
    numbers: dict[tuple[Any, ...], Any] = {}

    def fits(number: Any, beside: Any) -> bool:
        small = type(number) is int and -MOST_INTEGER < number < MOST_INTEGER
        if type(beside) is not tensor:
            return False
        return (small and id(beside.dtype) in integers) or (
            beside.dtype is tl.float32 and (small or type(number) is float)
        )

    def made(number: Any, beside: Any) -> Any:
        shape = beside.type.shape if beside.type.is_block() else ()
        key = (type(number), number, id(beside.dtype), shape)
        if key not in numbers:
            scalar = semantic.scalar_constant(number, beside.dtype)
            one = semantic.broadcast_impl_value(beside, scalar)[1]
            if one.handle.data.size > MOST_KEPT or number != number:
                return one
            one.handle.data.setflags(write=False)
            numbers[key] = one
        return numbers[key]

    def check(self: Any, lhs: Any, rhs: Any, *arguments: Any, **options: Any) -> Any:
        if type(lhs) is tensor and type(rhs) is tensor:
            if lhs.dtype is rhs.dtype and id(lhs.dtype) in kept:
                return self.broadcast_impl_value(lhs, rhs)
        elif options.get("arithmetic_check", True) and len(arguments) < 3:
            if fits(rhs, lhs):
                return lhs, made(rhs, lhs)
            if fits(lhs, rhs):
                return made(lhs, rhs), rhs
        return decide(self, lhs, rhs, *arguments, **options)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(kind_of, "binary_op_type_checking_impl", check)
        yield


WAYS = (
    *(language_is_patched_once, types_are_looked_up_once, sums_are_not_computed_twice, products_sum_in_one_order),
    *(shapes_are_made_once, operations_are_wrapped_once, operands_alike_are_not_compared),
)


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """All of these ways."""
    with contextlib.ExitStack() as stack:
        for way in WAYS:
            stack.enter_context(way())
        yield


begun: list[bool] = []  # by the first of the folders whose tests interpret kernels


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Once in a run."""
    with contextlib.nullcontext() if begun else quickly():
        begun.append(True)
        yield
        begun.pop()


@functools.cache
def triton_modules(function: Any) -> frozenset[int]:
    """Which of the modules that are replaced a function sees."""
    modules = interpreter.tl, interpreter.tl.core
    return frozenset(id(value) for value in function.__globals__.values() if any(value is one for one in modules))
