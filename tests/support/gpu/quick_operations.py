"""Operations of kernels in Triton's interpreter whose operands leave nothing to decide: numpy computes them at once.

Each of them would go through some thirty calls: which type the operands have in common, copies that have it and one
shape, checks for a compiler, and two objects for what is found. What is not plain here is Triton's to decide.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy
import triton.runtime.interpreter as interpreter

Operation = Callable[..., Any]
Wrap = Callable[[Operation], Operation]  # another, which asks this one where it does not know
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
MOST_INTEGER = 2**31  # of those that fit into each signed type that kernels add to
LEAST_FLOAT, MOST_FLOAT = 2.0**-126, 2.0**127  # which float32 has
EVICTIONS = {"evict_first", "evict_last", ""}
HINTS = {"eviction_policy", "cache_modifier"}
OF_LOADS, OF_STORES = {".ca", ".cg", ".cv", ""}, {".wb", ".cg", ".cs", ".wt", ""}

tl: Any = interpreter.tl
core: Any = tl.core
tensor, block_type, pointer_type, constexpr = core.tensor, core.block_type, core.pointer_type, core.constexpr
Handle: Any = interpreter.TensorHandle
INTEGERS = {id(one) for one in (tl.int32, tl.int64)}
NUMBERS = {*INTEGERS, *(id(one) for one in (tl.float32, tl.uint8, tl.uint32, tl.uint64))}
UNSIGNED = {id(tl.uint32): 2**32, id(tl.uint64): 2**64}
SHIFTED = INTEGERS | UNSIGNED.keys()
BITS = {*NUMBERS, id(tl.int1)} - {id(tl.float32)}
CASTS = {
    *((id(one), id(other)) for one in (tl.int1, tl.int32, tl.int64) for other in (tl.int32, tl.int64, tl.float32)),
    *((id(one), id(other)) for one, other in ((tl.float16, tl.float32), (tl.float32, tl.float16))),
}
made_types: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}  # type, shape and size by type, kind and shape


def tensor_of(data: Any, dtype: Any, is_block: bool) -> Any:
    """One with these numbers: numbers alone are arrays of one number, too."""
    key = dtype.name, is_block, data.shape
    made = object.__new__(tensor)
    made.handle = handle = object.__new__(Handle)
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    if key not in made_types:
        whole = tensor(handle, block_type(dtype, list(data.shape)) if is_block else dtype)
        made_types[key] = whole.type, whole.shape, whole.numel
    made.dtype = dtype
    made.type, made.shape, made.numel = made_types[key]
    return made


def is_block(one: Any) -> bool:
    return type(one.type) is block_type


def plain(number: Any, dtype: Any) -> Any:
    """A number beside a tensor of this type that keeps it, else nothing."""
    if type(number) is constexpr:
        number = number.value
    if type(number) is int:
        if id(dtype) in INTEGERS or dtype is tl.float32:
            return number if -MOST_INTEGER < number < MOST_INTEGER else None
        return number if 0 <= number < UNSIGNED.get(id(dtype), 0) else None
    if type(number) is float and dtype is tl.float32:
        size = abs(number)
        return number if size in (0, math.inf) or LEAST_FLOAT <= size <= MOST_FLOAT else None
    return None


def common_type(one: Any, other: Any) -> Any:
    """Of two of these types that numpy makes the same of as Triton."""
    if one is other:
        return one
    return tl.int64 if id(one) in INTEGERS and id(other) in INTEGERS else None


def divided(one: Any, other: Any) -> Any:
    """Integers, towards 0."""
    return (one - numpy.fmod(one, other)) // other


def shifted(compute: Operation) -> Wrap:
    """By fewer bits than there are: of others Triton warns."""

    def wrap(general: Operation) -> Operation:
        by_number = of_two(compute, general, SHIFTED)

        def call(self: Any, other: Any) -> Any:
            number = other.value if type(other) is constexpr else other
            return by_number(self, number) if type(number) is int and 0 <= number < 32 else general(self, other)

        return call

    return wrap


def invert(general: Operation) -> Operation:
    def call(self: Any) -> Any:
        if self.dtype is tl.int1:
            return tensor_of(~self.handle.data, tl.int1, is_block(self))
        return general(self)

    return call


def of_two(compute: Operation, general: Operation, kinds: set[int], found: Any = None) -> Operation:
    """Of a tensor and another, or a number, of one type; `found`: the type of what is found, if it is another."""

    def call(self: Any, other: Any) -> Any:
        dtype = self.dtype
        if id(dtype) in kinds:
            if type(other) is tensor:
                common = common_type(dtype, other.dtype)
                if common is not None:
                    whole = is_block(self) or is_block(other)
                    return tensor_of(compute(self.handle.data, other.handle.data), found or common, whole)
            elif (number := plain(other, dtype)) is not None:
                return tensor_of(compute(self.handle.data, number), found or dtype, is_block(self))
        return general(self, other)

    return call


def sum_of_two(general: Operation) -> Operation:
    """Or of a pointer and how many elements it is to move."""
    of_numbers = of_two(numpy.add, general, NUMBERS)

    def call(self: Any, other: Any) -> Any:
        dtype = self.dtype
        if type(dtype) is pointer_type and type(other) is tensor and id(other.dtype) in INTEGERS:
            moved = other.handle.data.astype(numpy.uint64)
            width = max(1, dtype.element_ty.primitive_bitwidth // 8)
            return tensor_of(self.handle.data + width * moved, dtype, is_block(self) or is_block(other))
        return of_numbers(self, other)

    return call


def of_one_type(compute: Operation, general: Operation) -> Operation:
    """A function of two tensors, or of one and a number, without options."""

    def call(x: Any, y: Any, **options: Any) -> Any:
        if not options and type(x) is tensor and id(x.dtype) in NUMBERS:
            if type(y) is tensor and y.dtype is x.dtype:
                return tensor_of(compute(x.handle.data, y.handle.data), x.dtype, is_block(x) or is_block(y))
            if type(y) is not tensor and (number := plain(y, x.dtype)) is not None:
                return tensor_of(compute(x.handle.data, number), x.dtype, is_block(x))
        return general(x, y, **options)

    return call


def where(general: Operation) -> Operation:
    def values(one: Any, other: Any) -> Any:
        """Of one that may be a number, in the type of the other."""
        if type(one) is tensor:
            return one.handle.data if type(other) is not tensor or one.dtype is other.dtype else None
        number = plain(one, other.dtype)
        return None if number is None else other.handle.data.dtype.type(number)

    def call(condition: Any, x: Any, y: Any) -> Any:
        kind = x if type(x) is tensor else y
        if type(condition) is tensor is type(kind) and condition.dtype is tl.int1 and id(kind.dtype) in NUMBERS:
            first, second = values(x, y), values(y, x)
            if first is not None and second is not None:
                whole = any(is_block(one) for one in (condition, x, y) if type(one) is tensor)
                return tensor_of(numpy.where(condition.handle.data, first, second), kind.dtype, whole)
        return general(condition, x, y)

    return call


def all_of(pointer: Any, mask: Any) -> Any:
    """Which of these are meant; nothing where a mask's shape is another one that pointers would be given."""
    shape = pointer.handle.data.shape
    if mask is None:
        return numpy.ones(shape, bool)
    if type(mask) is not tensor or mask.dtype is not tl.int1:
        return None
    own = mask.handle.data
    if own.shape == shape:
        return own if is_block(pointer) or not is_block(mask) else None
    fits = own.ndim == len(shape) and all(one in (1, wide) for one, wide in zip(own.shape, shape, strict=True))
    return numpy.broadcast_to(own, shape) if fits and is_block(pointer) else None


def are_hints(options: dict[str, Any], caches: set[str]) -> bool:
    """Are there others than what a cache is told?"""
    known = options.keys() <= HINTS and options.get("eviction_policy", "") in EVICTIONS
    return known and options.get("cache_modifier", "") in caches


def is_plain_pointer(one: Any) -> bool:
    if type(one) is not tensor or type(one.dtype) is not pointer_type:
        return False
    element = one.dtype.element_ty
    return element is not tl.int1 and type(element) is core.dtype


def is_nought(number: Any) -> bool:
    """Which has the same bits in all types."""
    value = number.value if type(number) is constexpr else number
    return type(value) in (int, float) and value == 0 and math.copysign(1, value) > 0


def load(general: Operation) -> Operation:
    def call(pointer: Any, mask: Any = None, other: Any = None, **options: Any) -> Any:
        if is_plain_pointer(pointer) and are_hints(options, OF_LOADS) and not (mask is None and other is not None):
            meant, element = all_of(pointer, mask), pointer.dtype.element_ty
            rest = 0 if other is None or is_nought(other) else plain(other, element)
            if meant is not None and rest is not None:
                places, kind = pointer.handle.data, interpreter._get_np_dtype(element)
                others = numpy.full(places.shape, rest, kind) if rest else numpy.zeros(places.shape, kind)
                read = interpreter._interpreter.load(places, meant, others, kind)
                return tensor_of(read, element, is_block(pointer))
        return general(pointer, mask, other, **options)

    return call


def store(general: Operation) -> Operation:
    def call(pointer: Any, value: Any, mask: Any = None, **options: Any) -> Any:
        if type(value) is tensor and is_plain_pointer(pointer) and are_hints(options, OF_STORES):
            same = value.dtype is pointer.dtype.element_ty and is_block(value) == is_block(pointer)
            if same and value.handle.data.shape == pointer.handle.data.shape:
                meant = all_of(pointer, mask)
                if meant is not None:
                    return interpreter._interpreter.store(pointer.handle.data, value.handle.data, meant)
        return general(pointer, value, mask, **options)

    return call


def cast(general: Operation) -> Operation:
    def call(self: Any, dtype: Any, *arguments: Any, **options: Any) -> Any:
        wanted = dtype.value if type(dtype) is constexpr else dtype
        if not arguments and not options:
            if wanted is self.dtype:
                return self
            if (id(self.dtype), id(wanted)) in CASTS:
                data = self.handle.data.astype(interpreter._get_np_dtype(wanted))
                return tensor_of(data, wanted, is_block(self))
        return general(self, dtype, *arguments, **options)

    return call


def item(general: Operation) -> Operation:
    """Of new dimensions."""
    whole = slice(None)

    def call(self: Any, slices: Any) -> Any:
        if is_block(self) and type(slices) is tuple and all(one is None or one == whole for one in slices):
            return tensor_of(self.handle.data[slices], self.dtype, True)
        return general(self, slices)

    return call


def with_numbers(compute: Operation, kinds: set[int] = NUMBERS, found: Any = None) -> Wrap:
    return lambda general: of_two(compute, general, kinds, found)


METHODS: dict[str, Wrap] = {
    **{"__add__": sum_of_two, "__radd__": sum_of_two, "to": cast, "__getitem__": item},
    **dict.fromkeys(("__mul__", "__rmul__"), with_numbers(numpy.multiply)),
    "__sub__": with_numbers(numpy.subtract),
    "__rsub__": with_numbers(lambda own, other: numpy.subtract(other, own)),
    "__truediv__": with_numbers(numpy.divide, {id(tl.float32)}),
    "__floordiv__": with_numbers(divided, INTEGERS),
    "__mod__": with_numbers(numpy.fmod, INTEGERS),
    "__lshift__": shifted(numpy.left_shift),
    "__rshift__": shifted(numpy.right_shift),
    "__invert__": invert,
    "__xor__": with_numbers(numpy.bitwise_xor, BITS),
    "__and__": with_numbers(numpy.bitwise_and, BITS),
    "__or__": with_numbers(numpy.bitwise_or, BITS),
    **{f"__{name}__": with_numbers(getattr(operator, name), NUMBERS, tl.int1) for name in COMPARISONS},
}
FUNCTIONS: dict[str, Wrap] = {
    **{"where": where, "load": load, "store": store},
    "maximum": lambda general: of_one_type(numpy.maximum, general),
    "minimum": lambda general: of_one_type(numpy.minimum, general),
}


def quick(name: str, general: Operation, of_tensor: bool) -> Operation:
    """An operation by its name, in front of Triton's own, if there is one."""
    wrap = (METHODS if of_tensor else FUNCTIONS).get(name)
    return general if wrap is None else wrap(general)
