"""What pytorch_model.bin says of its tensors. No weight is read, and nothing that a pickle names is run.

Such a file is a zip: a pickle of a dict of names and tensors, and each tensor's numbers in an entry of its own. Of all
that a pickle may call, a dict of tensors needs four names; any other is refused. The worker reads the numbers with
torch, which has a list of its own (weights_only). Knows files; no torch.
"""

from __future__ import annotations

import collections
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import ConfigError

LONGEST = 100_000_000  # bytes of a pickle, which holds names and shapes
STORAGES = {
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "IntStorage": ("I32", 4),
    "LongStorage": ("I64", 8),
    "DoubleStorage": ("F64", 8),
    "BoolStorage": ("BOOL", 1),
}


Shape = tuple[int, ...]


class PickledTensor(NamedTuple):
    """A tensor as safetensors' headers would tell it."""

    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes


class Storage(NamedTuple):
    """The numbers of one tensor, or of several."""

    dtype: str
    itemsize: int
    numbers: int


def read_pickled(path: Path) -> dict[str, PickledTensor]:
    """All tensors by name. ConfigError says what else it holds, or that it is broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            name = next((name for name in sizes if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if name is None:
                raise ConfigError(f"model: {path} holds no tensors (no data.pkl)")
            if sizes[name] > LONGEST:
                raise ConfigError(f"model: {path}: data.pkl has {sizes[name]:,} bytes; at most {LONGEST:,} are read")
            with archive.open(name) as file:
                found = TensorUnpickler(file, name.removesuffix(".pkl"), sizes).load()
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile:
        raise ConfigError(f"model: {path} is broken or cut off, or older than PyTorch 1.6: it is no zip file") from None
    except pickle.UnpicklingError as error:
        raise ConfigError(f"model: {path} cannot be read: {error}") from None
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, EOFError, RecursionError, MemoryError):
        raise ConfigError(f"model: {path} is broken: its data.pkl is no dict of tensors") from None
    return _named(path, found)


def _named(path: Path, found: Any) -> dict[str, PickledTensor]:
    if not isinstance(found, dict):
        raise ConfigError(f"model: {path} holds no dict of tensors")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, PickledTensor):
            raise ConfigError(f"model: {path}: {name!r:.60} is no tensor")
    return dict(found)


class TensorUnpickler(pickle.Unpickler):
    """Makes dicts of tensors' descriptions, and nothing else."""

    def __init__(self, file: Any, folder: str, sizes: dict[str, int]) -> None:
        super().__init__(file)
        self.folder, self.sizes = folder, sizes

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        known = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it holds {module}.{name}; only tensors are read")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        _, (dtype, itemsize), key, _, count = pid
        place = f"{self.folder}/{key}"
        if self.sizes.get(place) != count * itemsize:
            raise pickle.UnpicklingError(f"its {place} has not the {count * itemsize:,} bytes of its numbers")
        return Storage(dtype, itemsize, count)


def _tensor(storage: Storage, offset: int, shape: Shape, stride: Shape, *_: object) -> PickledTensor:
    if not all(isinstance(number, int) and number >= 0 for number in (offset, *shape, *stride)):
        raise ValueError("no shape")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if count and last >= storage.numbers:
        raise pickle.UnpicklingError(f"a tensor of shape {list(shape)} lies beyond its {storage.numbers:,} numbers")
    return PickledTensor(storage.dtype, tuple(shape), count * storage.itemsize)


def _parameter(tensor: PickledTensor, *_: object) -> PickledTensor:
    return tensor
