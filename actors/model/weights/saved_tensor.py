"""A tensor as torch.save writes it, read without torch.

Such a file is a zip: a pickle of what it holds, and each tensor's numbers in an entry of its own. As with torch's
weights_only a pickle may name what tensors are made of, and nothing else (pickled.py); nothing that it says is run, and
entries are read only as they are, uncompressed, each once: no more memory is taken than the file is long.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any, NamedTuple

import numpy as np

from .pickled import Storage, TensorUnpickler

DTYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BF16": np.uint16}
LONGEST_PICKLE = 1 << 16


class UnreadableTensor(ValueError):
    """It is something else; the message says what."""


class TensorStorage(NamedTuple):
    """The numbers of a tensor."""

    place: str
    storage: Storage


class _Reader(TensorUnpickler):
    """Makes arrays."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, sizes: dict[str, int]) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}.pkl")), folder, sizes)
        self._archive = archive
        self._read = False

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._array
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return TensorStorage(f"{self.folder}/{pid[2]}", super().persistent_load(pid))

    def _array(self, stored: TensorStorage, offset: int, shape: Any, stride: Any, *_: object) -> np.ndarray:
        kind = DTYPES.get(stored.storage.dtype)
        if kind is None:
            raise pickle.UnpicklingError(f"its numbers are {stored.storage.dtype}; floats and integers are read")
        if self._read:
            raise pickle.UnpicklingError("there are several")
        self._read = True
        numbers = np.frombuffer(self._archive.read(stored.place), kind)
        sizes, steps = (tuple(int(one) for one in given) for given in (shape, stride))
        last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        if min((offset, *sizes, *steps)) < 0 or (0 not in sizes and last >= len(numbers)):
            raise pickle.UnpicklingError("it lies beyond its numbers")
        if 0 in sizes:
            raise pickle.UnpicklingError("it has no numbers")
        item = numbers.itemsize
        seen = np.lib.stride_tricks.as_strided(numbers[offset:], sizes, tuple(step * item for step in steps))
        if seen.size > len(numbers):
            raise pickle.UnpicklingError("it says the same numbers again and again")
        found = np.ascontiguousarray(seen)
        return (found.astype(np.uint32) << 16).view(np.float32) if stored.storage.dtype == "BF16" else found


def read_tensor(data: bytes) -> np.ndarray:
    """The one that torch.save has written. UnreadableTensor says what it is instead."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            sizes = {one.filename: one.file_size for one in entries}
            name = next((name for name in sizes if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if name is None or any(one.compress_type != zipfile.ZIP_STORED for one in entries):
                raise UnreadableTensor("it is no tensor as torch.save writes it.")
            if sizes[name] > LONGEST_PICKLE:
                raise UnreadableTensor("what it says of its tensor is too long.")
            found = _Reader(archive, name.removesuffix(".pkl"), sizes).load()
    except UnreadableTensor:
        raise
    except pickle.UnpicklingError as error:
        raise UnreadableTensor(f"it is no tensor: {error}.") from None
    except Exception as error:  # a pickle's operations raise anything where it is broken
        raise UnreadableTensor(f"it is no tensor as torch.save writes it ({type(error).__name__}).") from None
    if not isinstance(found, np.ndarray):
        raise UnreadableTensor("it is no tensor, but something with tensors in it.")
    return found
