"""Operations that numpy computes at once in Triton's interpreter: bits, types and shapes are as Triton finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from triton.runtime import interpreter as triton_interpreter

from tests.support.gpu import quick_operations as quick

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted where there is a GPU")

interpreter: Any = triton_interpreter
tl, core = quick.tl, quick.core
NUMBERS = {
    "float32": [[-1.5, 0.0, 2.0, 3.25]],
    "int32": [[-7, 0, 2, 2**31 - 1]],
    "int64": [[-7, 0, 2, 2**40]],
    "uint8": [[0, 1, 200, 255]],
    "uint32": [[0, 1, 200, 2**32 - 1]],
    "uint64": [[0, 1, 200, 2**64 - 1]],
    "int1": [[False, True, True, False]],
    "float16": [[-1.5, 0.0, 2.0, 3.25]],
}
METHODS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__floordiv__", "__mod__", "__and__", "__or__", "__xor__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"),
)


@pytest.fixture(scope="module", autouse=True)
def language() -> Iterator[None]:
    """As it is within a kernel."""
    scope = interpreter._patch_lang(_kernel)
    yield
    scope.restore()


def _kernel() -> None:
    """The patch looks at what the module of a kernel sees."""


def block(name: str, shape: tuple[int, ...] = (1, 4)) -> Any:
    dtype = getattr(tl, name)
    data = numpy.array(NUMBERS[name], interpreter._get_np_dtype(dtype)).reshape(-1)
    if not shape:
        return tl.tensor(interpreter.TensorHandle(data[1:2].copy(), dtype), dtype)
    data = numpy.resize(data, shape)
    return tl.tensor(interpreter.TensorHandle(data, dtype), tl.block_type(dtype, list(shape)))


def told(one: Any) -> tuple[Any, ...]:
    data = one.handle.data
    return str(one.type), str(one.dtype), [int(wide) for wide in one.shape], data.dtype, data.shape, data.tobytes()


def own(name: str, of_tensor: bool) -> Any:
    """Triton's way, that is behind the quick one."""
    general = vars(core.tensor if of_tensor else core)[name]
    while "general" in (names := general.__code__.co_freevars):
        general = general.__closure__[names.index("general")].cell_contents
    return general


def both(name: str, of_tensor: bool, *operands: Any) -> tuple[Any, Any]:
    """As Triton finds it, and as it is found here, which asks Triton for nothing."""
    return own(name, of_tensor)(*operands), quick.quick(name, refuse, of_tensor)(*operands)


def refuse(*given: Any, **options: Any) -> Any:
    raise LookupError


SHAPES = (((4,), (2, 4)), ((2, 1), (1, 4)), ((4, 1), (4,)), ((), (4,)), ((2, 4), ()), ((), ()))
PAIRS = [
    *((kind, kind, (1, 4), (1, 4)) for kind in ("float32", "int32", "int64", "uint8", "uint32", "uint64")),
    *((kind, kind, left, right) for kind in ("float32", "int32") for left, right in SHAPES),
    *(("int32", "int64", (4,), (4, 1)), ("int64", "int32", (4,), ())),
]
BESIDE = {"float32": (2, 0.1, float("-inf")), "int32": (3,), "int64": (-3, 1), "uint32": (7,), "uint64": (3 << 40,)}
ONLY = {
    "__truediv__": ("float32",),
    **dict.fromkeys(("__floordiv__", "__mod__"), ("int32", "int64")),
    **dict.fromkeys(("__and__", "__or__", "__xor__"), ("int32", "int64", "uint8", "uint32", "uint64")),
}


@pytest.mark.parametrize("name", METHODS)
def test_two_of_one_type(name: str) -> None:
    """Or of two signed types of integers."""
    for kind, other, left, right in PAIRS:
        if kind in ONLY.get(name, NUMBERS):
            with numpy.errstate(all="ignore"):
                wanted, found = both(name, True, block(kind, left), block(other, right))
            assert told(found) == told(wanted), (kind, other, left, right)


@pytest.mark.parametrize("name", METHODS)
def test_a_number_beside(name: str) -> None:
    for kind, number in [(kind, number) for kind, numbers in BESIDE.items() for number in numbers]:
        if kind in ONLY.get(name, NUMBERS):
            for one in (number, tl.constexpr(number)):
                with numpy.errstate(all="ignore"):
                    wanted, found = both(name, True, block(kind), one)
                assert told(found) == told(wanted), (kind, number)


@pytest.mark.parametrize("name", ["__lshift__", "__rshift__"])
def test_bits_that_are_shifted(name: str) -> None:
    for kind in ("int32", "int64", "uint32", "uint64"):
        for number in (3, tl.constexpr(31)):
            wanted, found = both(name, True, block(kind), number)
            assert told(found) == told(wanted), (kind, number)


def test_masks() -> None:
    for name in ("__and__", "__or__", "__xor__"):
        wanted, found = both(name, True, block("int1", (4, 1)), block("int1"))
        assert told(found) == told(wanted)
    for shape in ((2, 4), ()):
        wanted, found = both("__invert__", True, block("int1", shape))
        assert told(found) == told(wanted)


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_what_a_condition_chooses(kind: str) -> None:
    condition = block("int1", (4, 1))
    for x, y in ((block(kind), block(kind, ())), (block(kind), -1), (0, block(kind, (4,))), (block(kind, ()), 2)):
        wanted, found = both("where", False, condition, x, y)
        assert told(found) == told(wanted)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_greater_and_the_less(name: str) -> None:
    for kind in ("float32", "int32"):
        for other in (block(kind, (2, 1)), 1):
            wanted, found = both(name, False, block(kind), other)
            assert told(found) == told(wanted)


def test_other_types_and_dimensions() -> None:
    for kind, wanted_kind in (("int1", "int32"), ("int32", "float32"), ("int64", "int32"), ("float16", "float32")):
        wanted, found = both("to", True, block(kind), getattr(tl, wanted_kind))
        assert told(found) == told(wanted)
    wanted, found = both("to", True, block("float32"), tl.float16)
    assert told(found) == told(wanted)
    for slices in ((None, slice(None)), (slice(None), None)):
        wanted, found = both("__getitem__", True, block("int32", (4,)), slices)
        assert told(found) == told(wanted)


@pytest.mark.parametrize("kind", ["float32", "int32", "float16", "bfloat16", "uint8"])
def test_memory_that_is_read(kind: str) -> None:
    """What is read, and what stands for the rest."""
    memory = torch.arange(40).to(getattr(torch, kind))
    pointer = interpreter._implicit_cvt(memory)
    columns = tl.arange(0, 4)
    for offsets in (columns, columns[:, None] + 4 * tl.arange(0, 2)[None, :]):
        wanted, places = both("__add__", True, pointer, offsets)
        assert told(places) == told(wanted)
        for mask, other in ((None, None), (offsets < 3, None), (offsets < 3, 0.0), (offsets < 3, 0)):
            wanted, found = both("load", False, places, mask, other)
            assert told(found) == told(wanted)
    wanted, found = both("load", False, pointer)
    assert told(found) == told(wanted)


def test_blocks_of_a_descriptor_are_read_and_written() -> None:
    """By functions of the same names as those of pointers, and with other arguments."""
    memory = torch.arange(32, dtype=torch.float32).reshape(2, 16)
    described = tl.make_tensor_descriptor(interpreter._implicit_cvt(memory), [2, 16], [16, 1], [1, 16])
    read = described.load([1, 0])
    assert read.handle.data.tolist() == [memory[1].tolist()]
    described.store([0, 0], read)
    assert memory.tolist() == [list(range(16, 32))] * 2


@pytest.mark.parametrize("kind", ["float32", "int32", "float16", "bfloat16", "uint8"])
def test_memory_that_is_written_to(kind: str) -> None:
    """Where the mask says so, and by both ways the same."""
    written = []
    for way in (own("store", False), quick.quick("store", refuse, False)):
        memory = torch.arange(8).to(getattr(torch, kind))
        places = interpreter._implicit_cvt(memory) + tl.arange(0, 8)
        value = tl.load(interpreter._implicit_cvt(memory) + (7 - tl.arange(0, 8)))
        way(places, value, tl.arange(0, 8) < 5)
        written.append(memory.tolist())
    assert written == [[7, 6, 5, 4, 3, 5, 6, 7]] * 2


@pytest.mark.parametrize(
    ("name", "of_tensor", "operands"),
    [
        ("__add__", True, lambda: (block("int32"), block("uint64"))),
        ("__add__", True, lambda: (block("uint64"), -1)),
        ("__rshift__", True, lambda: (block("int64"), 40)),
        ("__invert__", True, lambda: (block("int32"),)),
        ("__add__", True, lambda: (block("float16"), block("float16"))),
        ("__add__", True, lambda: (block("uint8"), 1)),
        ("__mul__", True, lambda: (block("int32"), 0.5)),
        ("__add__", True, lambda: (block("int32"), 2**40)),
        ("__truediv__", True, lambda: (block("int32"), block("int32"))),
        ("__and__", True, lambda: (block("float32"), block("float32"))),
        ("where", False, lambda: (block("int1"), block("int32"), block("float32"))),
        ("where", False, lambda: (block("int32"), block("int32"), 0)),
        ("maximum", False, lambda: (1, 2)),
        ("load", False, lambda: (block("int32"),)),
        ("to", True, lambda: (block("float32"), tl.int32)),
        ("__getitem__", True, lambda: (block("int32", ()), (None,))),
    ],
)
def test_what_is_to_be_decided_is_tritons(name: str, of_tensor: bool, operands: Any) -> None:
    with pytest.raises(LookupError):
        quick.quick(name, refuse, of_tensor)(*operands())
