"""What every message is made of: its base, and whole numbers packed into bytes (int32 in the machine's order).

A frontend, which knows the classes of all messages, loads no numpy: that is done when the first array is read. (An
import in each of these functions would cost more than the reading; every step of scheduler and worker passes here.)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray | Sequence[int]  # of an integer type
    Int32s = numpy.ndarray[tuple[int], numpy.dtype[numpy.int32]]
    Int64s = numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]

ITEM_BYTES = 4  # of a packed number
LISTS = (list, tuple, range)
# What is raised of bytes that are no message: to texts that are no UTF-8, and to deep nests, Python itself objects.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
np: Any = None
INT32 = INT64 = None  # numpy's


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of what crosses a ring."""


def pack(numbers: Numbers) -> bytes:
    """int32 of an array of any shape, row by row, or of a flat sequence."""
    if isinstance(numbers, LISTS):
        return array("i", numbers).tobytes()
    if np is None:
        _load()
    packed: bytes = numbers.astype(INT32).tobytes()  # type: ignore[union-attr]  # an array, then
    return packed


def unpack(packed: bytes) -> Int32s:
    """int32 [n], a view that cannot be written to."""
    if np is None:
        _load()
    numbers: Int32s = np.frombuffer(packed, INT32)
    return numbers


def unpack_int64(packed: bytes) -> Int64s:
    """The same as int64 [n], a copy: what indexes arrays."""
    if np is None:
        _load()
    numbers: Int64s = np.frombuffer(packed, INT32).astype(INT64)
    return numbers


def _load() -> None:
    global np, INT32, INT64
    import numpy

    np, INT32, INT64 = numpy, numpy.dtype(numpy.int32), numpy.dtype(numpy.int64)
