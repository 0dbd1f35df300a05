"""What every message is made of: its base, and whole numbers packed into bytes (int32 in the machine's order).

A frontend, which knows the classes of all messages, loads no numpy: who reads an array has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray | Sequence[int]  # of an integer type
    Int32s = np.ndarray[tuple[int], np.dtype[np.int32]]
    Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]

ITEM_BYTES = 4  # of a packed number


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of what crosses a ring."""


def pack(numbers: Numbers) -> bytes:
    """int32 of an array of any shape, row by row, or of a flat sequence."""
    if isinstance(numbers, list | tuple | range):
        return array("i", numbers).tobytes()
    import numpy as np

    return np.asarray(numbers, np.int32).tobytes()


def unpack(packed: bytes) -> Int32s:
    """int32 [n], a view that cannot be written to."""
    import numpy as np

    return np.frombuffer(packed, np.int32)


def unpack_int64(packed: bytes) -> Int64s:
    """The same as int64 [n], a copy: what indexes arrays."""
    import numpy as np

    return np.frombuffer(packed, np.int32).astype(np.int64)
